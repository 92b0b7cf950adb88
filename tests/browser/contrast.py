"""The contrast of every visible text of a page with what lies behind it, as WCAG 2 has it."""

from __future__ import annotations

from tests.browser.chromium import Browser

MIN_CONTRAST = 4.5
"""WCAG's AA of small text; large text is held to it as well."""
FAINT_TEXTS = """
    const still = document.createElement("style");
    still.textContent = "* { transition: none !important; animation: none !important }";
    document.head.append(still);
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const known = new Map();
    const rgba = (color) => {
        if (!known.has(color)) {
            context.clearRect(0, 0, 1, 1);
            context.fillStyle = color;
            context.fillRect(0, 0, 1, 1);
            const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
            known.set(color, [red, green, blue, alpha / 255]);
        }
        return known.get(color);
    };
    const over = (front, back) => {
        const alpha = front[3];
        return [0, 1, 2].map((i) => front[i] * alpha + back[i] * (1 - alpha)).concat(1);
    };
    const behind = (element) => {
        const layers = [];
        for (let one = element; one; one = one.parentElement) {
            const layer = rgba(getComputedStyle(one).backgroundColor);
            if (layer[3] > 0) layers.push(layer);
            if (layer[3] === 1) break;
        }
        return layers.reduceRight((back, front) => over(front, back), [255, 255, 255, 1]);
    };
    const opacity = (element) => {
        let product = 1;
        for (let one = element; one; one = one.parentElement) {
            product *= Number(getComputedStyle(one).opacity);
        }
        return product;
    };
    const luminance = (color) => {
        const [red, green, blue] = color.slice(0, 3).map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const faint = new Map();
    const measure = (element, color, text) => {
        const back = behind(element);
        const [red, green, blue, alpha] = rgba(color);
        const front = over([red, green, blue, alpha * opacity(element)], back);
        const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
        const contrast = (light + 0.05) / (dark + 0.05);
        if (contrast >= arguments[0]) return;
        const what = `${element.localName}.${element.className}`.slice(0, 80);
        faint.set(what, `contrast ${contrast.toFixed(2)} of ${text.trim().slice(0, 40)} (${what})`);
    };
    const isRead = (element) => !element.closest("[aria-hidden=true], :disabled, [inert]")
        && element.checkVisibility({opacityProperty: true, visibilityProperty: true});
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode.data, element = texts.currentNode.parentElement;
        if (!text.trim() || element.closest("script, style, noscript, option, title")) continue;
        if (isRead(element)) measure(element, getComputedStyle(element).color, text);
    }
    for (const field of document.querySelectorAll("input, textarea, select")) {
        if (["hidden", "checkbox", "radio", "range"].includes(field.type)) continue;
        if (!isRead(field)) continue;
        const text = field.value || field.placeholder;
        const part = field.value ? null : "::placeholder";
        if (text) measure(field, getComputedStyle(field, part).color, text);
    }
    for (const canvas of document.querySelectorAll("canvas[data-drawn]")) {
        const chart = window.Chart?.getChart(canvas);
        for (const scale of Object.values(chart?.scales ?? {})) {
            measure(canvas, scale.options.ticks.color, "ticks of a chart");
        }
        if (chart) measure(canvas, chart.legend.options.labels.color, "legend of a chart");
    }
    still.remove();
    return [...faint.values()];
"""


def faint_texts(browser: Browser) -> list[str]:
    """One line for each kind of element, of the page that is open, as it stands."""
    found = browser.run(FAINT_TEXTS, MIN_CONTRAST)
    return [f"{browser.path}: {one}" for one in found]
