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
})();
