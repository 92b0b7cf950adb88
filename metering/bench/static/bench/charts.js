// Charts of the bench. <canvas data-bench-chart="ID"> draws what <script id="ID" type="application/json">
// holds: {"kind": "line" | "scatter", "title", "labels", "lines": [{"name", "points", "is_baseline", "marked"}]}.
(function () {
  "use strict";
  const COLORS = ["#7c3aed", "#d97706", "#059669", "#0284c7", "#db2777", "#4f46e5"];
  const BAD = "#dc2626";

  // A point that is marked is large, red and a triangle: not told by colour alone.
  function datasetOf(chart, line, index) {
    const own = COLORS[index % COLORS.length];
    const isMarked = (_, at) => chart.kind === "line" ? line.marked[at] : line.points[at].is_marked;
    const each = (marked, plain) => line.points.map((_, at) => isMarked(_, at) ? marked : plain);
    return {
      label: line.name, data: line.points, borderColor: own, borderWidth: 2, showLine: true, spanGaps: true,
      borderDash: line.is_baseline ? [6, 4] : [], tension: 0,
      pointBackgroundColor: each(chart.kind === "line" ? BAD : own, own),
      pointBorderColor: each(chart.kind === "line" ? BAD : own, own),
      pointStyle: each("triangle", "circle"), pointRadius: each(8, line.is_baseline ? 0 : 3), pointHoverRadius: 8,
    };
  }

  function tipOf(chart, context) {
    const point = context.raw;
    if (chart.kind === "scatter") return context.dataset.label + ", " + point.label + ": " + point.y.toFixed(1) + " tok/s, p95 " + point.x.toFixed(3) + " s";
    const isBad = chart.lines[context.datasetIndex].marked[context.dataIndex];
    return context.dataset.label + ": " + Number(point).toPrecision(4) + (isBad ? " (regressed)" : "");
  }

  function axis(title, isGridded) {
    const text = helexaCharts.color("--hx-quiet");
    return {
      beginAtZero: true, ticks: {color: text}, title: {display: Boolean(title), text: title, color: text},
      grid: isGridded ? {color: helexaCharts.color("--hx-line")} : {display: false},
    };
  }

  helexaCharts.add("data-bench-chart", function (chart) {
    const across = axis(chart.x_title || "", false);
    if (chart.kind === "scatter") across.type = "linear";
    return {
      type: chart.kind,
      data: {labels: chart.labels, datasets: chart.lines.map((line, index) => datasetOf(chart, line, index))},
      options: {
        scales: {x: across, y: axis(chart.title, true)},
        plugins: {
          legend: {labels: {color: helexaCharts.color("--hx-quiet")}},
          tooltip: {callbacks: {label: (context) => tipOf(chart, context)}},
        },
      },
    };
  });
})();
