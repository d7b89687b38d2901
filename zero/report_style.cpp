#include "zerograd/zero/report_parts.h"

// The constant texts of a page: style and script.
namespace zg::zero {

const char* const report_style = R"(
:root { color-scheme: light dark; --back: #fff; --text: #1a1d21; --dim: #667; --rule: #d9dce1;
  --run0: #3b6fd4; --run1: #c2571a; --run2: #2d8a57; --run3: #8a4fc7; --run4: #90791b;
  --bad: #d02f3d; --skip: #c98500; --restart: #8a4fc7; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e6e8eb; --dim: #9aa2ad;
  --rule: #343a42; --run0: #7aa5ff; --run1: #ff9d66; --run2: #6ccf9b; --run3: #c79bff;
  --run4: #d9c25c; --bad: #ff7280; --skip: #ffc24d; --restart: #c79bff; } }
@media print { :root { --back: #fff; --text: #000; --dim: #444; --rule: #bbb; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1700px; padding: 12px 16px 40px; background: var(--back);
  color: var(--text); font: 14px/1.4 system-ui, sans-serif; }
h1 { font-size: 18px; margin: 8px 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 26px 0 8px; border-bottom: 1px solid var(--rule); }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: 2px 14px 2px 0; font-weight: 400;
  overflow-wrap: anywhere; }
th { color: var(--dim); }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 8px 0 2px; }
.facts th { white-space: nowrap; }
.settings { columns: 400px; column-gap: 32px; }
.settings table { width: 100%; table-layout: fixed; break-inside: avoid; }
.settings th { width: 48%; } .settings td:last-child { width: 22%; color: var(--dim); }
.settings tr.default { color: var(--dim); }
.charts { display: grid; gap: 18px 28px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); }
@media (min-width: 1100px) { .charts { grid-template-columns: 1fr 1fr; } }
figure { margin: 0; break-inside: avoid; min-width: 0; }
.chart { display: grid; grid-template-columns: 58px 1fr; grid-template-rows: auto 190px 20px; }
figcaption { grid-column: 1 / 3; display: flex; flex-wrap: wrap; gap: 0 8px; padding-bottom: 6px; }
figcaption output { margin-left: auto; color: var(--dim); font-variant-numeric: tabular-nums; }
.y { position: relative; } .y span { position: absolute; right: 6px; transform: translateY(-50%);
  font-size: 12px; line-height: 1; color: var(--dim); white-space: nowrap; }
.x { grid-column: 2; position: relative; height: 20px; font-size: 12px; color: var(--dim);
  padding-top: 3px; }
.x span { position: absolute; white-space: nowrap; }
svg { display: block; width: 100%; height: 100%; overflow: visible; }
svg path { fill: none; vector-effect: non-scaling-stroke; }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.validation .line { stroke-width: 2; stroke-dasharray: 2 4; }
svg .area { stroke: none; opacity: 0.22; } .validation .area { display: none; }
.line.run0 { stroke: var(--run0); } .line.run1 { stroke: var(--run1); }
.line.run2 { stroke: var(--run2); } .line.run3 { stroke: var(--run3); }
.line.run4 { stroke: var(--run4); }
svg .area.run0 { fill: var(--run0); } svg .area.run1 { fill: var(--run1); }
svg .area.run2 { fill: var(--run2); } svg .area.run3 { fill: var(--run3); }
svg .area.run4 { fill: var(--run4); }
svg .skipped { stroke: var(--skip); stroke-width: 1.2; opacity: 0.7; }
svg .restart { stroke: var(--restart); stroke-width: 1.6; stroke-dasharray: 6 3; }
svg .bad { stroke: var(--bad); stroke-width: 1.2; opacity: 0.7; }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.memory .x { display: flex; justify-content: space-around; }
.memory .x span { position: static; }
.wide { overflow-x: auto; margin-top: 8px; } .wide th, .wide td { white-space: nowrap; }
svg path.reserved { stroke: var(--text); stroke-width: 2; } .key i.reserved { border-color: var(--text); }
rect.purpose0 { fill: #4269d0; } rect.purpose1 { fill: #d99a00; } rect.purpose2 { fill: #3f9d8c; }
rect.purpose3 { fill: #f0604d; } rect.purpose4 { fill: #9c6b4e; } rect.purpose5 { fill: #a463f2; }
.key i.purpose0 { border-color: #4269d0; } .key i.purpose1 { border-color: #d99a00; }
.key i.purpose2 { border-color: #3f9d8c; } .key i.purpose3 { border-color: #f0604d; }
.key i.purpose4 { border-color: #9c6b4e; } .key i.purpose5 { border-color: #a463f2; }
.key i[class^=purpose] { border-top-width: 10px; vertical-align: 0; }
.lanes { display: grid; grid-template-columns: 58px 1fr; gap: 8px 0; font-size: 12px; }
.lanes > span { align-self: center; color: var(--dim); } .lanes svg { height: 50px; }
.lanes path { stroke-width: 7px; } .lanes .lane3 { stroke-width: 11px; }
.lane0 { stroke: #4269d0; } .lane1 { stroke: #f0604d; } .lane2 { stroke: #3f9d8c; }
.lane3 { stroke: var(--dim); } .lane4 { stroke: var(--run1); } .lane5 { stroke: var(--run2); }
.lane6 { stroke: var(--bad); }
.key i.lane0 { border-color: #4269d0; } .key i.lane1 { border-color: #f0604d; }
.key i.lane2 { border-color: #3f9d8c; }
.key i.lane3 { border-color: var(--dim); } .key i.lane4 { border-color: var(--run1); }
.key i.lane5 { border-color: var(--run2); } .key i.lane6 { border-color: var(--bad); }
.key i[class^=lane] { border-top-width: 9px; vertical-align: 0; }
.blocks { grid-template-rows: 300px 20px; } .blocks rect { stroke: var(--back); stroke-width: 0.5; }
.phases { grid-column: 2; display: flex; font-size: 12px; color: var(--dim); }
.phases span { overflow: hidden; padding: 3px 0 0 3px; border-left: 1px solid var(--rule);
  white-space: nowrap; } summary { cursor: pointer; padding: 4px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 12px; }
.key i { display: inline-block; width: 18px; height: 0; margin-right: 6px; vertical-align: 4px;
  border-top: 3px solid var(--run0); }
.key i.run1 { border-color: var(--run1); } .key i.run2 { border-color: var(--run2); }
.key i.run3 { border-color: var(--run3); } .key i.run4 { border-color: var(--run4); }
.key i.area { opacity: 0.3; border-top-width: 9px; vertical-align: 1px; }
.key i.held { border-top-style: dotted; } .key i.skipped { border-color: var(--skip); }
.key i.restart { border-color: var(--restart); border-top-style: dashed; }
.key i.bad { border-color: var(--bad); }
@media (max-width: 620px) { figcaption output { margin-left: 0; width: 100%; } }
@media print { * { print-color-adjust: exact; }
  .wide { overflow: visible; } .wide th, .wide td { white-space: normal; } }
)";

const char* const report_script = R"(
// Shows the values of the bucket under the pointer.
for (const chart of document.querySelectorAll("[data-points]")) {
  const shown = chart.querySelector("output"), plot = chart.querySelector(".plot");
  const still = shown.textContent, set = chart.dataset, width = Number(set.width);
  const points = set.points.split(";").filter(Boolean).map(p => p.split(",").map(Number));
  plot.addEventListener("pointerleave", () => { shown.textContent = still; });
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect(), first = Number(set.first), last = Number(set.last);
    const step = first + (event.clientX - box.left) / box.width * (last - first);
    let best = null, near = Infinity;
    for (const p of points) {
      const distance = Math.abs(p[0] + (width - 1) / 2 - step);
      if (near > distance) { near = distance; best = p; }
    }
    if (!best) return;
    shown.textContent = best[1] > 1
      ? `steps ${best[0]} to ${best[0] + width - 1}: ${best[2]} to ${best[4]}, mean ${best[3]}`
      : `step ${best[0]}: ${best[3]}`;
  });
}
)";

}  // namespace zg::zero
