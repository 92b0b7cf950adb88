"""What the editor offers to choose from: models and modes, as ACP has them. Pure.

Written as JSON: the SDK takes that as well, its models would have to be made while an editor waits,
and it has none for ``models``, which ACP had before config options and some clients know alone.
"""

from __future__ import annotations

from typing import Any

from acp.schema import ConfigOptionUpdate

from helexa_acp.config import Config
from helexa_acp.conversation.sessions import Session
from helexa_acp.endpoints import Endpoints
from helexa_acp.rounds.modes import MODE_NAMES, Mode
from helexa_acp.selectors import Selector

MODEL_OPTION = "model"


def opened(config: Config, endpoints: Endpoints, session: Session) -> dict[str, Any]:
    """The modes and models in the answer that opens a session."""
    ids = model_ids(config, endpoints, session)
    return {
        "modes": {
            "currentModeId": session.mode.value,
            "availableModes": [
                {"id": mode.value, "name": MODE_NAMES[mode][0], "description": MODE_NAMES[mode][1]}
                for mode in Mode
            ],
        },
        "models": {
            "currentModelId": session.selector.picker_id(config),
            "availableModels": [{"modelId": one, "name": one} for one in ids],
        },
        "configOptions": config_options(config, endpoints, session),
    }


def config_options(config: Config, endpoints: Endpoints, session: Session) -> list[dict[str, Any]]:
    ids = model_ids(config, endpoints, session)
    return [
        {
            "type": "select",
            "id": MODEL_OPTION,
            "name": "Model",
            "category": "model",
            "currentValue": session.selector.picker_id(config),
            "options": [{"value": one, "name": one} for one in ids],
        }
    ]


def options_changed(config: Config, endpoints: Endpoints, session: Session) -> ConfigOptionUpdate:
    return ConfigOptionUpdate.model_validate(
        {
            "sessionUpdate": "config_option_update",
            "configOptions": config_options(config, endpoints, session),
        }
    )


def model_ids(config: Config, endpoints: Endpoints, session: Session) -> list[str]:
    return [one.picker_id(config) for one in selectors(config, endpoints, session.selector)]


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
