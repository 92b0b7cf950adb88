// What helexa's pages do beside htmx and Alpine.
(function () {
  "use strict";
  // What htmx has swapped in is bound at once: a button that is pressed in between would send its form
  // by the browser's own way, and load the page anew.
  htmx.config.defaultSettleDelay = 0;

  // <div hx-get="…" hx-trigger="every 2s …" data-pause-for="SELECTOR"> is not refreshed while the page has
  // such an element: a form that is being filled in, or ticked rows. The refresh is neither requested
  // nor swapped in: one may have been requested just before.
  function isPaused(element) {
    const selector = element.dataset.pauseFor;
    return Boolean(selector && document.querySelector(selector));
  }
  document.addEventListener("htmx:beforeRequest", function (event) {
    if (isPaused(event.detail.elt)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", function (event) {
    if (isPaused(event.detail.requestConfig.elt)) event.detail.shouldSwap = false;
  });

  // <button data-ask="WORDS"> is pressed once the reader has confirmed the words. Before htmx hears of
  // it, which sends the form of such a button.
  document.addEventListener("click", function (event) {
    const button = event.target.closest("[data-ask]");
    if (!button || window.confirm(button.dataset.ask)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);

  // The notice of what went well goes after a while; other notices stay.
  window.addEventListener("load", () => document.body.addEventListener("htmx:oobAfterSwap", forgetNotices));
  function forgetNotices() {
    const good = document.querySelectorAll("#notices .hx-good");
    setTimeout(() => good.forEach((notice) => notice.remove()), 8000);
  }

  // Copies a text, and calls done when it has. Pages that neither come by https nor from this machine
  // are not let to the clipboard but by the browser's older way.
  function copy(text, done) {
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(done);
      return;
    }
    const focused = document.activeElement;
    const field = document.createElement("textarea");
    field.value = text;
    field.style.cssText = "position: fixed; opacity: 0";
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    focused?.focus();
    if (isCopied) done();
  }
  window.helexaCopy = copy;

  // <button data-copy="ID"> copies what the element of that id says.
  document.addEventListener("click", function (event) {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent.trim();
    copy(text, () => { button.textContent = "Copied"; });
  });

  // Names for what the admin's scripts add to its forms without one. What they add is watched, as rows
  // are added to a form later.

  // Select2 shows a field of its own in place of a <select>: it has the label of that.
  function nameSelect(select) {
    const field = select.nextElementSibling, label = select.labels[0];
    if (!label || !field?.classList.contains("select2-container") || field.dataset.named) return;
    field.dataset.named = "1";
    label.id ||= `${select.id}-label`;
    const chosen = field.querySelector(".select2-selection__rendered");
    chosen.removeAttribute("role");
    chosen.removeAttribute("aria-readonly");
    field.querySelector(".select2-selection").setAttribute("aria-labelledby", [label.id, chosen.id].join(" ").trim());
    field.querySelector(".select2-search__field")?.setAttribute("aria-label", label.textContent.trim());
  }

  // A field in a row of a table has the name of its column.
  function nameField(field) {
    if (!field.labels?.length) field.setAttribute("aria-label", field.closest("[data-label]").dataset.label);
  }

  function mark() {
    document.querySelectorAll("[data-label] :is(input, select, textarea):not([type=hidden], [aria-label])").forEach(nameField);
    document.querySelectorAll("select.select2-hidden-accessible").forEach(nameSelect);
    document.querySelectorAll(".help-tooltip:not([role])").forEach((one) => one.setAttribute("role", "img"));
  }

  // Swagger UI is dark where <html> has its own class for it: it follows the theme of the page. The page
  // has a main part already, which Swagger UI's lies in.
  function followPage(swagger) {
    const root = document.documentElement;
    const follow = () => root.classList.toggle("dark-mode", root.classList.contains("dark"));
    new MutationObserver(follow).observe(root, {attributeFilter: ["class"]});
    follow();
    const unmark = () => swagger.querySelector("main:not([role])")?.setAttribute("role", "none");
    new MutationObserver(unmark).observe(swagger, {childList: true, subtree: true});
    unmark();
  }

  document.addEventListener("DOMContentLoaded", function () {
    mark();
    new MutationObserver(mark).observe(document.getElementById("main") ?? document.body, {childList: true, subtree: true});
    const swagger = document.getElementById("swagger-ui");
    if (swagger) followPage(swagger);
  });
})();
