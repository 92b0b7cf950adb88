"""A form of the admin whose row the services check by their own rules as well."""

from __future__ import annotations

from fleet.admin.unfold_types import AnyForm
from fleet.errors import CatalogueValueError
from metering.errors import MeteringValueError


class CheckedForm(AnyForm):
    def check_row(self) -> None:
        """Raises ``CatalogueValueError`` or ``MeteringValueError``."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """Django has filled the row. What the services refuse is shown at its field."""
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        try:
            self.check_row()
        except (CatalogueValueError, MeteringValueError) as error:
            self.add_error(error.field if error.field in self.fields else None, str(error))
