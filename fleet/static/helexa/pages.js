// Charts of helexa's pages. <canvas data-chart="ID"> shows what <script id="ID" type="application/json">
// holds: {"labels": […], "<series>": […], …}. It is drawn again when htmx brings new numbers, and in
// the colours of the theme when that changes.
(function () {
  "use strict";
  const COLORS = ["#7c3aed", "#d97706", "#059669", "#0284c7", "#db2777", "#4f46e5"];
  const charts = new Map();

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
  }

  function numbersOf(canvas) {
    const source = document.getElementById(canvas.dataset.chart);
    return source ? JSON.parse(source.textContent) : null;
  }

  function seriesOf(numbers) {
    return Object.keys(numbers).filter((name) => name !== "labels");
  }

  // Two series are of different size and have an axis each; more share one.
  function axisOf(names, index) {
    return names.length === 2 ? "y" + index : "y";
  }

  function scales(names) {
    const text = color("--hx-quiet"), line = color("--hx-line");
    const found = {x: {ticks: {color: text, maxRotation: 0, autoSkip: true}, grid: {display: false}}};
    names.forEach((name, index) => {
      const axis = axisOf(names, index);
      found[axis] = {
        beginAtZero: true, position: axis === "y1" ? "right" : "left",
        // Only money has parts.
        ticks: {color: text, precision: name === "USD" ? undefined : 0}, grid: {color: axis === "y1" ? "transparent" : line},
        title: {display: axis !== "y", text: name, color: text},
      };
    });
    return found;
  }

  function draw(canvas) {
    const numbers = numbersOf(canvas);
    if (!numbers) return;
    const kind = canvas.dataset.kind || "line";
    const names = seriesOf(numbers);
    const datasets = names.map((name, index) => ({
      label: name, data: numbers[name], borderColor: COLORS[index % COLORS.length],
      backgroundColor: COLORS[index % COLORS.length], borderWidth: kind === "line" ? 2 : 0, pointRadius: 0, tension: 0.2,
      yAxisID: axisOf(names, index),
    }));
    const known = charts.get(canvas);
    if (known) known.destroy();
    charts.set(canvas, new Chart(canvas, {
      type: kind,
      data: {labels: numbers.labels, datasets: datasets},
      options: {
        animation: false, maintainAspectRatio: false, interaction: {mode: "index", intersect: false},
        scales: scales(names),
        plugins: {legend: {display: names.length > 1, labels: {color: color("--hx-quiet")}}},
      },
    }));
    canvas.dataset.drawn = "1";
  }

  function drawAll() {
    document.querySelectorAll("canvas[data-chart]").forEach(draw);
  }

  function refresh() {
    charts.forEach((chart, canvas) => {
      const numbers = numbersOf(canvas);
      if (!numbers) return;
      chart.data.labels = numbers.labels;
      seriesOf(numbers).forEach((name, index) => { chart.data.datasets[index].data = numbers[name]; });
      chart.update("none");
    });
  }

  window.addEventListener("load", function () {
    drawAll();
    document.body.addEventListener("htmx:afterSettle", refresh);
    new MutationObserver(drawAll).observe(document.documentElement, {attributeFilter: ["class"]});
  });

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
