"""What an operator does on the pages beside the catalogue: add from the hub, import a models.toml,
invite a host, delete cached files (each answer is looked at on a phone in the dark as well), and
search the pages of the APIs."""

from __future__ import annotations

import pytest

from tests.browser.chromium import DARK_PHONE, DESKTOP, Browser
from tests.browser.seed import OPERATOR, PASSWORD

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

CATALOGUE = "/admin/fleet/cataloguemodel/"
IMPORTED = "[[models]]\nid = 'third'\nsource = 'pypi:third'\nlimit.context = 512\n"

SECTIONS = """
    return [...document.querySelectorAll("section[id] h2")]
        .filter((one) => one.checkVisibility()).map((one) => one.innerText);
"""
HAVE_IT = {"POST /v1/chat/completions"}
"""Of ``EVERY``, those with the field that is searched for."""
EVERY = HAVE_IT | {"POST /v1/embeddings"}
TAGS = """
    return [...document.querySelectorAll("#swagger-ui .opblock-tag")]
        .filter((one) => one.checkVisibility()).map((one) => one.dataset.tag);
"""


@pytest.fixture
def operator(browser: Browser) -> Browser:
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    return browser


def whole(browser: Browser, name: str) -> list[str]:
    """The problems of the page that is open, in both views."""
    problems = []
    for view in (DESKTOP, DARK_PHONE):
        browser.look_as(view)
        browser.photograph(f"{name}-{view.name}")
        problems += browser.check()
    browser.look_as(DESKTOP)
    return problems


def test_a_model_is_added_from_the_hub(operator: Browser) -> None:
    operator.type("#add-repository", "org/tiny-gguf")
    operator.press_button("#add-title ~ form button")
    operator.wait_for_text("Q8_0")
    operator.wait_for_text("beast: fits")
    operator.press_button('form:has([name="offer"][value="Q4_K_M"]) button:not([name])')
    operator.wait_for_text("tiny-q4_k_m is in the catalogue")
    assert operator.path.endswith("/change/")
    assert operator.check() == []


def test_a_models_toml_shows_what_it_would_change_before_it_does(operator: Browser) -> None:
    operator.open(f"{CATALOGUE}models-toml/")
    operator.type("#id_text", IMPORTED)
    operator.press_button('form[enctype] button[type="submit"]')
    operator.wait_for_text("What would change")
    operator.wait_for_text("third")
    assert whole(operator, "models-toml-difference") == []
    operator.press_button('form:has([name="seen"]) button')
    operator.wait_for_path(CATALOGUE)
    operator.wait_for_text("Imported: 1 model and 0 aliases changed")


def test_an_invitation_shows_its_line_once(operator: Browser) -> None:
    operator.open("/admin/fleet/invitation/add/")
    operator.type("#id_neuron_name", "loft")
    operator.type("#id_address", "10.0.0.5:6379")
    operator.press_button('[name="_save"]')
    line = operator.find("#join-line").text
    assert line.startswith("python3 manage.py neuron --join ")
    assert whole(operator, "invitation-created") == []
    operator.open("/admin/fleet/invitation/")
    operator.wait_for_text("loft")
    assert line.split()[-1] not in operator.text


def test_what_no_model_uses_is_deleted_from_a_neuron(operator: Browser) -> None:
    operator.open("/admin/fleet/download/cached/")
    operator.wait_for_text("no loaded model")
    operator.press_button('[aria-label^="Delete huggingface:example/older"]')
    assert operator.accept() == "Delete huggingface:example/older from beast?"
    operator.wait_for_path("/admin/fleet/download/")
    operator.wait_for_text("is being deleted")
    assert operator.check() == []


def test_the_inference_api_is_searched(browser: Browser) -> None:
    browser.start_anew(DESKTOP)
    browser.open("/docs")
    browser.wait(lambda: set(browser.run(SECTIONS)) >= EVERY, "all of them")
    browser.add("#search-paths", "parallel_tool_calls")
    # The sections are shown and hidden one by one, some frames after each letter.
    browser.wait(lambda: EVERY & set(browser.run(SECTIONS)) == HAVE_IT, "those that have it")
    browser.add("#search-paths", " of nobody")
    browser.wait_for_text("No path and no field has these words.")
    browser.wait(lambda: browser.run(SECTIONS) == [], "none is shown")
    assert browser.check() == []


def test_the_fleets_api_is_searched_and_has_examples(browser: Browser) -> None:
    browser.start_anew(DESKTOP)
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.open("/api/docs")
    browser.find("#swagger-ui .opblock")
    browser.wait(lambda: {"upstreams", "accounts"} <= set(browser.run(TAGS)), "the tags")
    browser.add("#swagger-ui .operation-filter-input", "upstr")
    browser.wait(lambda: browser.run(TAGS) == ["upstreams"], "the tag that has it")
    browser.wait_for_text("curl http")
    browser.wait_for_text("/api/overview")
    assert browser.check() == []
    browser.click('a[href="/admin/"]')
    browser.wait_for_path("/admin/")
