/** How the page looks, and the marks that its drawings use. */

export const STYLE = `
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --lane: #f6f8fa;
  --good: #1a7f37; --bad: #cf222e; --other: #8b949e; --held: #c9d1d9; --on: #fff; --hatch: rgb(0 0 0 / .5);
  --op0: #0969da; --op1: #bc4c00; --op2: #8250df; --op3: #116b57;
  --k0: #d4a72c; --k1: #6fb1f5; --k2: #d58af0; --k3: #4ac26b; --k4: #f2906f; --k5: #6cc5c0; --k6: #b2a3f5; --k7: #a8a29a }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #f0f6fc; --soft: #9198a1; --line: #3d444d; --lane: #151b23;
    --good: #3fb950; --bad: #ff6a61; --other: #7d8590; --held: #3d444d; --on: #0d1117; --hatch: rgb(13 17 23 / .62);
    --op0: #58a6ff; --op1: #f0883e; --op2: #bc8cff; --op3: #2dba91;
    --k0: #9e7b16; --k1: #2f6fb0; --k2: #8c46a8; --k3: #2b7a41; --k4: #a8502f; --k5: #2e7f7a; --k6: #6657b8; --k7: #6d675f }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 16px; max-width: 1080px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; overflow-x: clip }
h1 { font-size: 18px; font-weight: 600; margin: 0 }
h2 { font-size: 20px; margin: 40px 0 8px }
h3 { font-size: 17px; margin: 0 0 4px }
.verdict { font-size: clamp(24px, 6vw, 40px); font-weight: 700; line-height: 1.2; margin: 4px 0 12px }
.verdict.good, .good { color: var(--good) }
.verdict.bad { color: var(--bad) }
.soft, figcaption, .meta { color: var(--soft) }
p { margin: 4px 0 }
code, pre { font: 13px/1.45 ui-monospace, monospace }
code, pre { background: var(--lane); border-radius: 4px; padding: 1px 5px }
pre { padding: 10px; overflow-x: auto; overflow-wrap: normal; margin: 6px 0 }
.tables { display: flex; flex-wrap: wrap; gap: 8px 40px; align-items: flex-start; margin-top: 16px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid var(--line); font-weight: 400;
  vertical-align: top }
thead th { color: var(--soft); font-size: 13px }
.number { text-align: right; white-space: nowrap }
section { border-top: 3px solid var(--bad); margin-top: 28px; padding-top: 12px }
.message { font-size: 16px; font-weight: 500 }
.scroll { overflow-x: auto; margin: 8px 0 }
.scroll table { font-size: 13px }
.scroll td, .scroll th { white-space: nowrap }
figure { margin: 14px 0 }
figcaption { font-size: 13px }
summary { cursor: pointer }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; list-style: none; margin: 8px 0; padding: 0 }
.legend svg { vertical-align: -5px; margin-right: 6px }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 2px; background: currentColor; margin-right: 6px }
svg { display: block; overflow: visible }
.legend svg { display: inline-block }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
svg .note { font-size: 11px; fill: var(--soft) }
svg .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 3px }
.grid { stroke: var(--line); stroke-width: 1 }
.phase { stroke: var(--soft); stroke-dasharray: 3 3 }
.shade { fill: var(--k0); opacity: .16 }
.area { fill: var(--op0); opacity: .18 }
.rate { fill: none; stroke: var(--op0); stroke-width: 1.5; vector-effect: non-scaling-stroke }
.k0 { fill: var(--k0); stroke: var(--k0) } .k1 { fill: var(--k1); stroke: var(--k1) }
.k2 { fill: var(--k2); stroke: var(--k2) } .k3 { fill: var(--k3); stroke: var(--k3) }
.k4 { fill: var(--k4); stroke: var(--k4) } .k5 { fill: var(--k5); stroke: var(--k5) }
.k6 { fill: var(--k6); stroke: var(--k6) } .k7 { fill: var(--k7); stroke: var(--k7) }
.band { opacity: .14 }
.bad { color: var(--bad) }
.bad-line { stroke: var(--bad); stroke-width: 1.5 }
svg .bad-text { fill: var(--bad); font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 3px }
.lane { fill: var(--lane); fill-opacity: .55 }
.lane.odd { fill-opacity: 0 }
svg .worker { font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 3px }
.op0 { color: var(--op0) } .op1 { color: var(--op1) } .op2 { color: var(--op2) } .op3 { color: var(--op3) }
.other { color: var(--other) }
.hold { fill: currentColor; stroke: currentColor; stroke-width: 1 }
.other .hold { fill: var(--held); stroke: var(--other) }
svg .in { fill: var(--on); font-weight: 600; pointer-events: none; paint-order: stroke; stroke: currentColor;
  stroke-width: 4px }
svg .other .in { fill: var(--ink); font-weight: 400; stroke: var(--held) }
svg .fence { font-weight: 600 }
.wait { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 2 3 }
.asked { stroke: currentColor; stroke-width: 1.5 }
.releasing { fill: currentColor; opacity: .45 }
.clash { fill: url(#hatch); pointer-events: none }
.shared { fill: var(--bad); fill-opacity: .1; stroke: var(--bad); stroke-width: 1; stroke-dasharray: 4 3 }
.confirmed { fill: var(--paper); stroke: currentColor; stroke-width: 1.5 }
.usual { stroke: currentColor; stroke-width: 1; opacity: .7 }
.thread { stroke: currentColor; stroke-width: 1; stroke-dasharray: 1 3 }
line.life { stroke: var(--soft); stroke-width: 1.5 }
line.life.killed, line.life.failed { stroke: var(--bad); stroke-width: 2 }
svg text.life { font-size: 11px }
svg text.killed, svg text.failed { fill: var(--bad); font-weight: 600 }
@media (max-width: 640px) { .wide { display: none } body { padding: 12px } }
@media print { details > * { display: block } }
`

/** What is filled was accepted; what is hollow and crossed out was not. */
export const MARKS = `<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<rect width="2.5" height="6" style="fill:var(--hatch)"/></pattern>
<path id="violated" d="M-6,-6H6L0,5Z" fill="currentColor"/>
<path id="lost" d="M0,-7L6,0L0,7L-6,0Z" style="fill:var(--paper)" stroke="currentColor" stroke-width="2"/>
<path id="refused" d="M-4,-4L4,4M4,-4L-4,4" fill="none" stroke="currentColor" stroke-width="2"/>
<path id="cut" d="M-6,-6L6,6M6,-6L-6,6" fill="none" style="stroke:var(--bad)" stroke-width="3"/>
<circle id="read-accepted" r="5" fill="currentColor"/>
<rect id="wrote-accepted" x="-5" y="-5" width="10" height="10" fill="currentColor"/>
<path id="read-refused" d="M0,-5A5,5 0 1 1 0,5A5,5 0 1 1 0,-5M-7,7L7,-7" style="fill:var(--paper)" \
stroke="currentColor" stroke-width="1.7"/>
<path id="wrote-refused" d="M-5,-5H5V5H-5ZM-8,8L8,-8" style="fill:var(--paper)" stroke="currentColor" stroke-width="1.7"/>
</defs></svg>`
