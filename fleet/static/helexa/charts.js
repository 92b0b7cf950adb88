// Charts of helexa's pages. <canvas data-KIND="ID"> shows what <script id="ID" type="application/json">
// holds. Each is drawn once its canvas is on the page, and again in the colours of another theme; it has
// one axis a figure.
//
//   data-chart     bars, of the figure that data-figure names: {"labels": […], "USD": […], "tokens": […]}
//   data-series    lines: {"labels": […], "unit": "ms", "steps": false, "lines": [{"label": …, "color": …,
//                  "data": […]}, …]}. Counts are steps, the rest straight, with gaps where nothing was counted.
//
// helexaCharts.add names another kind, and what makes Chart.js' settings of its numbers.
(function () {
  "use strict";
  const FIGURES = {USD: "#7c3aed", tokens: "#d97706"};
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
  const kinds = new Map();
  const charts = new Map();

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
  }

  function draw(which) {
    for (const [canvas, chart] of charts) {
      if (!canvas.isConnected) { chart.destroy(); charts.delete(canvas); }
    }
    for (const [kind, settingsOf] of kinds) {
      for (const canvas of document.querySelectorAll(`canvas[${kind}]${which}`)) {
        const source = document.getElementById(canvas.getAttribute(kind));
        if (!source) continue;
        charts.get(canvas)?.destroy();
        const {options, ...settings} = settingsOf(JSON.parse(source.textContent), canvas);
        Object.assign(options, {animation: false, maintainAspectRatio: false});
        charts.set(canvas, new Chart(canvas, {...settings, options}));
        canvas.dataset.drawn = "1";
      }
    }
  }

  window.addEventListener("load", function () {
    draw("");
    document.body.addEventListener("htmx:afterSettle", () => draw(":not([data-drawn])"));
    new MutationObserver(() => draw("")).observe(document.documentElement, {attributeFilter: ["class"]});
  });

  function bars(numbers, canvas) {
    const {figure} = canvas.dataset, quiet = color("--hx-quiet");
    return {
      type: "bar",
      data: {labels: numbers.labels, datasets: [{label: figure, data: numbers[figure], backgroundColor: FIGURES[figure]}]},
      options: {
        interaction: {mode: "index", intersect: false},
        scales: {
          x: {ticks: {color: quiet, maxRotation: 0, autoSkip: true}, grid: {display: false}},
          // Only money has parts.
          y: {beginAtZero: true, ticks: {color: quiet, precision: figure === "USD" ? undefined : 0}, grid: {color: color("--hx-line")}},
        },
        plugins: {legend: {labels: {color: quiet}}},
      },
    };
  }

  function sizeText(value) {
    let size = value, place = 0;
    while (Math.abs(size) >= 1024 && place < SIZES.length - 1) { size /= 1024; place += 1; }
    return `${Number(size.toFixed(1))} ${SIZES[place]}`;
  }

  function text(value, unit) {
    if (unit === "bytes") return sizeText(value);
    if (unit === "ms") return value >= 10000 ? `${Number((value / 1000).toFixed(1))} s` : `${Number(value.toFixed(1))} ms`;
    return `${Number(value.toFixed(2))}${unit}`;
  }

  // A line shows no number that stands alone, nor the last of a row of steps: those are dots.
  function radius(data, index, areSteps) {
    const isAlone = data[index - 1] == null && data[index + 1] == null;
    return isAlone || (areSteps && index === data.length - 1 && data[index]) ? 2.5 : 0;
  }

  // As many labels as have room, at equal distances. Chart.js's own choice rounds each place, so that
  // two of them touch where few points are far apart.
  function thin(axis, labels) {
    const labelWidth = 16 + 7 * Math.max(...labels.map((label) => label.length));
    const every = Math.ceil(labels.length * labelWidth / (axis.chart.width - 60));
    axis.ticks = axis.ticks.filter((tick) => tick.value % every === 0);
  }

  function series(numbers) {
    const quiet = color("--hx-quiet");
    return {
      type: "line",
      data: {
        labels: numbers.labels,
        datasets: numbers.lines.map((line) => ({
          label: line.label, data: line.data, borderColor: line.color, backgroundColor: line.color,
          borderWidth: 2, tension: 0,
          pointRadius: (point) => radius(line.data, point.dataIndex, numbers.steps), stepped: numbers.steps ? "before" : false, spanGaps: false,
        })),
      },
      options: {
        interaction: {mode: "index", intersect: false},
        scales: {
          x: {ticks: {color: quiet, maxRotation: 0, autoSkip: false}, grid: {display: false}, afterBuildTicks: (axis) => thin(axis, numbers.labels)},
          y: {
            beginAtZero: true, grid: {color: color("--hx-line")},
            ticks: {color: quiet, precision: numbers.steps ? 0 : undefined, callback: (value) => text(value, numbers.unit)},
          },
        },
        plugins: {
          legend: {display: true, labels: {color: quiet, boxHeight: 2}},
          tooltip: {callbacks: {label: (item) => `${item.dataset.label}: ${text(item.parsed.y, numbers.unit)}`}},
        },
      },
    };
  }

  kinds.set("data-chart", bars);
  kinds.set("data-series", series);
  window.helexaCharts = {add: (kind, settingsOf) => kinds.set(kind, settingsOf), color};
})();
