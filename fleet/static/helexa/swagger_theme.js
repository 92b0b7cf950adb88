// Swagger UI is dark where <html> has its own class for it: it follows the theme of the page.
(function () {
  "use strict";
  const root = document.documentElement;
  const follow = () => root.classList.toggle("dark-mode", root.classList.contains("dark"));
  new MutationObserver(follow).observe(root, {attributeFilter: ["class"]});
  follow();

  // The page has a main part already, which this one lies in.
  const drawn = document.getElementById("swagger-ui");
  const unmark = () => drawn.querySelector("main:not([role])")?.setAttribute("role", "none");
  new MutationObserver(unmark).observe(drawn, {childList: true, subtree: true});
})();
