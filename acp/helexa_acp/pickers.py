"""What the editor offers to choose from: models and modes, as ACP has them. Pure."""

from __future__ import annotations

import functools
from typing import Annotated, Any, TypeVar

from acp.schema import (
    ConfigOptionUpdate,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionMode,
    SessionModeState,
)
from pydantic import BaseModel, ConfigDict, Field, create_model

from helexa_acp.config import Config
from helexa_acp.endpoints import Endpoints
from helexa_acp.modes import MODE_NAMES, Mode
from helexa_acp.selectors import Selector
from helexa_acp.sessions import Session

MODEL_OPTION = "model"
Answer = TypeVar("Answer", bound=BaseModel)


class OfferedModel(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    model_id: Annotated[str, Field(alias="modelId")]
    name: str


class ModelState(BaseModel):
    """What ACP had before config options, and some clients know alone."""

    model_config = ConfigDict(populate_by_name=True)

    current_model_id: Annotated[str, Field(alias="currentModelId")]
    available_models: Annotated[list[OfferedModel], Field(alias="availableModels")]


@functools.cache
def _with_models(answer: type[Answer]) -> type[Answer]:
    """Made when it is first needed: a session is either new, loaded or resumed."""
    return create_model(answer.__name__, __base__=answer, models=(ModelState, ...))


def with_pickers(
    answer: type[Answer],
    config: Config,
    endpoints: Endpoints,
    session: Session,
    **fields: Any,
) -> Answer:
    """The answer that opens a session, of that kind."""
    made: Answer = _with_models(answer)(
        modes=mode_state(session),
        models=model_state(config, endpoints, session),
        config_options=list(config_options(config, endpoints, session)),
        **fields,
    )
    return made


def selectors(config: Config, endpoints: Endpoints, chosen: Selector) -> list[Selector]:
    """Each once: what the endpoints offer, with the configured and the chosen one in any case."""
    found: dict[tuple[str, str], Selector] = {}
    for endpoint in config.endpoints:
        models = [offer.model for offer in endpoints.offers(endpoint)]
        named = [endpoint.default_model] if endpoint.default_model else []
        for model in (*named, *models):
            found.setdefault((endpoint.name, model), Selector(endpoint, model))
    found.setdefault((chosen.endpoint.name, chosen.model), chosen)
    return list(found.values())


def model_state(config: Config, endpoints: Endpoints, session: Session) -> ModelState:
    ids = [one.picker_id(config) for one in selectors(config, endpoints, session.selector)]
    return ModelState(
        current_model_id=session.selector.picker_id(config),
        available_models=[OfferedModel(model_id=one, name=one) for one in ids],
    )


def config_options(
    config: Config, endpoints: Endpoints, session: Session
) -> list[SessionConfigOptionSelect]:
    state = model_state(config, endpoints, session)
    return [
        SessionConfigOptionSelect(
            type="select",
            id=MODEL_OPTION,
            name="Model",
            category="model",
            current_value=state.current_model_id,
            options=[
                SessionConfigSelectOption(value=one.model_id, name=one.name)
                for one in state.available_models
            ],
        )
    ]


def options_changed(config: Config, endpoints: Endpoints, session: Session) -> ConfigOptionUpdate:
    return ConfigOptionUpdate(
        session_update="config_option_update",
        config_options=list(config_options(config, endpoints, session)),
    )


def mode_state(session: Session) -> SessionModeState:
    return SessionModeState(
        current_mode_id=session.mode.value,
        available_modes=[
            SessionMode(id=mode.value, name=MODE_NAMES[mode][0], description=MODE_NAMES[mode][1])
            for mode in Mode
        ],
    )
