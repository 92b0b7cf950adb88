// Names for what the admin's scripts add to its forms without one. What they add is watched, as rows
// are added to a form later.
(function () {
  "use strict";

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

  document.addEventListener("DOMContentLoaded", function () {
    mark();
    new MutationObserver(mark).observe(document.getElementById("main") ?? document.body, {childList: true, subtree: true});
  });
})();
