"""The page in a real browser: opened, clicked, searched, on a desk and on a phone.

Its records are of real runs on the twin: a subject with a fault, and smla.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.core.request import Request
from conformance.core.run import run
from conformance.report.gather import gather
from conformance.report.page import page
from conformance.tests.requirements import test_mha, test_plan, test_read

selenium = pytest.importorskip("selenium", reason="needs selenium: the extra `browser`")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="needs chromium and chromedriver on PATH (Debian: chromium-driver)",
)
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync""".split()
DESK, PHONE = (1280, 900), (375, 800)
FAULTY = "conformance.subjects.upstream:ClampsKvEnd"
CASES = [
    *test_read.test_nothing_behind_the_valid_prefix_is_touched.judge.cases("twin")[:8],
    *test_plan.test_after_the_clamp_work_items_tile_the_valid_range.judge.cases("twin")[:4],
    *test_mha.test_prefills_go_to_dense_mha_iff_the_longest_fits.judge.cases("twin")[:2],
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs."""
    root = tmp_path_factory.mktemp("report")
    for name, subject in (("faulty", FAULTY), ("smla", "conformance.subjects.smla:SmlaSubject")):
        run(Request(subject=subject, tier="twin", cases=CASES, workers="0", report=root / name))
    path = root / "report.html"
    path.write_text(page(gather([root / "faulty", root / "smla"])), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def browser(driver: webdriver.Chrome, file: Path) -> Iterator[webdriver.Chrome]:
    """The page on a desk; it must not have complained by the end, nor asked for anything."""
    for log in ("browser", "performance"):  # reading empties them
        driver.get_log(log)
    resize(driver, DESK)
    driver.get("about:blank")
    driver.get(file.as_uri())
    yield driver
    assert driver.get_log("browser") == [], "the console is empty"
    sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in sent
        if message["method"] == "Network.requestWillBeSent"
    ]
    strangers = [url for url in asked if not url.startswith(("file://", "about:"))]
    assert any(url.startswith("file://") for url in asked) and not strangers, strangers


def resize(driver: webdriver.Chrome, size: tuple[int, int]) -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def one(browser: webdriver.Chrome, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def every(browser: webdriver.Chrome, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements(By.CSS_SELECTOR, selector)
    return found


def click(browser: webdriver.Chrome, selector: str) -> None:
    found = one(browser, selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    found.click()


def shown_rows(browser: webdriver.Chrome) -> list[str]:
    rows = every(browser, "tr[data-id]")
    return [row.get_attribute("data-id") for row in rows if row.is_displayed()]


FAILED = "tr[data-id='READ-C'] td.bad button"


def test_the_verdicts_stand_first(browser: webdriver.Chrome) -> None:
    verdicts = [found.text for found in every(browser, ".verdict")]
    assert any("ClampsKvEnd does not conform" in text for text in verdicts), verdicts
    assert any("incomplete" in text and "smla" in text for text in verdicts), verdicts


def test_a_click_on_a_failing_cell_shows_its_cases(browser: webdriver.Chrome) -> None:
    assert not one(browser, "dialog").is_displayed()
    click(browser, FAILED)
    assert one(browser, "dialog").is_displayed()
    case = one(browser, "details.case[open]")
    assert case.find_element(By.CSS_SELECTOR, ".badge").text == "fail"
    message = case.find_element(By.CSS_SELECTOR, ".message").text
    assert "end of what the kernel touched, per row" in message and "expected" in message
    line = case.find_element(By.CSS_SELECTOR, ".line").text
    assert line.startswith(f"python -m conformance run --subject {FAULTY} --tier twin")
    assert "--case 'READ-C/" in line
    assert "of its bound" in case.find_element(By.CSS_SELECTOR, ".gauge").text


def test_a_failing_case_has_a_drawing(browser: webdriver.Chrome) -> None:
    click(browser, FAILED)
    picture = one(browser, "details.case[open] .canvas svg")
    items = picture.find_elements(By.CSS_SELECTOR, "g.item")
    assert items, "work items"
    for part in ("valid", "planned", "masked", "touched", "beyond", "count"):
        assert picture.find_elements(By.CSS_SELECTOR, f".{part}"), part
    title = items[0].find_element(By.CSS_SELECTOR, "title").get_attribute("textContent")
    assert "cluster" in title and "planned [0, " in title and "touched" in title
    box = one(browser, "details.case[open] .canvas")
    assert picture.size["width"] <= box.size["width"], "it fits"
    widths = [
        (bar.size["width"], mark.rect["x"] - bar.rect["x"])
        for item in items
        for bar in item.find_elements(By.CSS_SELECTOR, ".valid")
        for mark in item.find_elements(By.CSS_SELECTOR, ".count")
    ]
    assert all(abs(width - to_count) < 3 for width, to_count in widths), "valid ends at the count"


def test_the_repro_line_can_be_copied(browser: webdriver.Chrome) -> None:
    click(browser, FAILED)
    click(browser, "details.case[open] .copy")
    button = one(browser, "details.case[open] .copy")
    WebDriverWait(browser, 5).until(lambda _: button.text in ("copied", "marked"))


def test_the_dialog_closes_and_focus_returns(browser: webdriver.Chrome) -> None:
    browser.execute_script("arguments[0].focus()", one(browser, FAILED))
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert one(browser, "dialog").is_displayed(), "the keyboard opens it"
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    WebDriverWait(browser, 5).until(lambda _: not one(browser, "dialog").is_displayed())
    assert browser.switch_to.active_element == one(browser, FAILED)


def test_a_cell_has_an_address(browser: webdriver.Chrome, file: Path) -> None:
    click(browser, FAILED)
    address = browser.current_url
    assert "#READ-C" in address
    browser.get("about:blank")
    browser.get(address)
    assert one(browser, "dialog").is_displayed() and one(browser, "#cell-title").text == "READ-C"


def test_outcomes_can_be_left_out(browser: webdriver.Chrome) -> None:
    click(browser, FAILED)
    click(browser, "#cell-outcomes button")
    assert not any(case.is_displayed() for case in every(browser, "details.case"))


def test_cases_that_were_not_judged_open_too(browser: webdriver.Chrome) -> None:
    click(browser, "tr[data-id='MHA-1'] td.open button")
    assert one(browser, "details.case[open] .badge").text == "unobservable"
    assert "capability mha" in one(browser, "details.case[open] .message").text


def test_search_family_and_failures_filter_the_rows(browser: webdriver.Chrome) -> None:
    everything = ["PLAN-4", "READ-C", "MHA-1"]
    assert shown_rows(browser) == everything
    one(browser, "body").send_keys("/")
    search = one(browser, "#search")
    assert browser.switch_to.active_element == search, "a slash goes to the search"
    search.send_keys("read-")
    assert shown_rows(browser) == ["READ-C"] and one(browser, "#shown").text == "1 of 3 shown"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys("behind prefix")
    assert shown_rows(browser) == ["READ-C"], "words of the sentence"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE, Keys.ENTER)
    assert shown_rows(browser) == everything, "the form goes nowhere"
    one(browser, "#family").send_keys("PLAN")
    assert shown_rows(browser) == ["PLAN-4"]
    one(browser, "#family").send_keys(Keys.HOME)
    one(browser, "#only").click()
    assert "READ-C" in shown_rows(browser)
    assert len(shown_rows(browser)) <= len(everything)


@pytest.mark.parametrize("width", [320, 375, 599, 768, 1280])
def test_no_width_makes_the_page_wider_than_the_screen(
    browser: webdriver.Chrome, width: int
) -> None:
    resize(browser, (width, 800))
    wide = "return [document.documentElement.scrollWidth, window.innerWidth]"
    page_width, screen = browser.execute_script(wide)
    assert page_width <= screen == width
    click(browser, FAILED)
    page_width, screen = browser.execute_script(wide)
    assert page_width <= screen
    inside = "const d = document.querySelector('dialog'); return [d.scrollWidth, d.clientWidth]"
    content, room = browser.execute_script(inside)
    assert content <= room <= width, "the dialog fits"


def test_on_a_phone_a_row_is_a_card_and_still_opens(browser: webdriver.Chrome) -> None:
    resize(browser, PHONE)
    assert not one(browser, ".matrix thead").is_displayed()
    label = "return getComputedStyle(arguments[0], '::before').content"
    cell = one(browser, "tr[data-id='READ-C'] td.bad")
    assert "ClampsKvEnd on twin" in browser.execute_script(label, cell)
    click(browser, FAILED)
    assert one(browser, "dialog").size["width"] == PHONE[0]
    picture = one(browser, "details.case[open] .canvas svg")
    assert picture.size["width"] <= PHONE[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(browser: webdriver.Chrome, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        pairs = browser.execute_script(
            """const ground = (e) => { for (; e; e = e.parentElement) {
                 const c = getComputedStyle(e).backgroundColor;
                 if (!/, 0\\)$|transparent/.test(c)) return c; } return "rgb(255, 255, 255)"; };
               return [...document.querySelectorAll("p, th, td span, h2, label, li, button span")]
                 .filter((e) => e.textContent.trim() && e.offsetParent)
                 .map((e) => [getComputedStyle(e).color, ground(e), e.textContent.trim()]);"""
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(pairs) > 20
    weak = [pair for pair in pairs if contrast(pair[0], pair[1]) < 4.5]
    assert not weak, weak[:3]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2 of two CSS colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_print_leaves_out_what_paper_cannot_do(browser: webdriver.Chrome) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert (
            not one(browser, ".filters").is_displayed() and one(browser, ".matrix").is_displayed()
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
