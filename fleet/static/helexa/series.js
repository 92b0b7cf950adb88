// Charts of series. <canvas data-series="ID"> shows what <script id="ID" type="application/json"> holds:
// {"labels": […], "unit": "ms", "steps": false, "lines": [{"label": …, "color": …, "data": […]}, …]}.
// Every chart has one axis. Counts are steps, the rest are straight lines with gaps where nothing was counted.
(function () {
  "use strict";
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
  const charts = new Map();

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
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

  function settings(numbers) {
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
        animation: false, maintainAspectRatio: false, interaction: {mode: "index", intersect: false},
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

  function draw(canvas) {
    const source = document.getElementById(canvas.dataset.series);
    if (!source) return;
    charts.get(canvas)?.destroy();
    charts.set(canvas, new Chart(canvas, settings(JSON.parse(source.textContent))));
    canvas.dataset.drawn = "1";
  }

  function drawAll() {
    for (const [canvas, chart] of charts) {
      if (!canvas.isConnected) { chart.destroy(); charts.delete(canvas); }
    }
    document.querySelectorAll("canvas[data-series]").forEach(draw);
  }

  function drawNew() {
    if (document.querySelector("canvas[data-series]:not([data-drawn])")) drawAll();
  }

  window.addEventListener("load", function () {
    drawAll();
    document.body.addEventListener("htmx:afterSettle", drawNew);
    new MutationObserver(drawAll).observe(document.documentElement, {attributeFilter: ["class"]});
  });
})();
