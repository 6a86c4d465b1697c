// The style sheet of the report: colours as variables, light and dark.
#ifndef PIPELOOM_CLI_REPORT_STYLE_H_
#define PIPELOOM_CLI_REPORT_STYLE_H_

namespace pipeloom::cli {

// Modules have a light (forward) and a strong colour (backward); weight
// gradients are hatched with both. Module k has colour k % kNumModuleColours.
inline constexpr int kNumModuleColours = 6;

inline constexpr char kReportStyle[] = R"css(
:root{color-scheme:light dark;
--page:#fafaf8;--card:#fff;--ink:#1c1e21;--soft:#63686f;--line:#e2e2de;
--idle:#eeeeea;--epilogue:#b9bcc2;--limit:#c62f2f;--link:#8a8f98;
--m0a:#a9c8f5;--m0b:#2f6fd0;--m1a:#f8c58c;--m1b:#d9731a;
--m2a:#a5d8ae;--m2b:#2f9150;--m3a:#d3bcf0;--m3b:#8450c4;
--m4a:#9fdcdc;--m4b:#17898c;--m5a:#f5b5c8;--m5b:#cf3f6d;
--i0:#9aa3b2;--i1:#b7becb;--i2:#7d8798;--i3:#d3d7de;--i4:#5b9bf0;--i5:#f0a04b}
@media (prefers-color-scheme:dark){:root{
--page:#15171a;--card:#1d2024;--ink:#e7e8ea;--soft:#9aa0a8;--line:#33373d;
--idle:#282c31;--epilogue:#6a7078;--limit:#ff6b6b;--link:#7d848e;
--m0a:#7fa9e6;--m0b:#2c62b5;--m1a:#e3a763;--m1b:#b75f12;
--m2a:#7cc08a;--m2b:#2a7d46;--m3a:#b497dd;--m3b:#6f41a8;
--m4a:#72c1c1;--m4b:#147477;--m5a:#e08ea7;--m5b:#b2355e;
--i0:#6c7585;--i1:#565e6b;--i2:#8690a1;--i3:#464c56;--i4:#4d8be0;--i5:#d88c3a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:40px 0 12px}h3{font-size:15px;margin:24px 0 8px}
p{margin:4px 0 12px}.soft{color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));
gap:12px;margin:24px 0 8px}
.figure{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:12px 16px}
.figure b{display:block;font-size:22px;font-weight:650;line-height:1.3;
font-variant-numeric:tabular-nums}
.figure span{color:var(--soft);font-size:13px}
.figure small{display:block;color:var(--soft);font-size:12px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:16px;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;font-size:13px}
th.l,td.l{text-align:left}td.why{white-space:normal;color:var(--soft)}
tr:last-child td{border-bottom:0}
svg{display:block;width:100%;height:auto;
font:11px system-ui,"DejaVu Sans",sans-serif}
svg text{fill:var(--soft)}
svg .row{fill:var(--idle)}svg .tick{stroke:var(--line)}
svg .link{stroke:var(--link);stroke-width:.7;opacity:.6;fill:none}
svg .e{fill:var(--epilogue)}
svg .t{fill:#fff;font-size:10px;text-anchor:middle;pointer-events:none}
svg .t.d{fill:#1c1e21}
svg .limit{stroke:var(--limit);stroke-dasharray:5 3;fill:none}
svg rect:hover{stroke:var(--ink);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:6px 20px;margin:12px 0 0;font-size:13px;
color:var(--soft)}
.legend svg{display:inline-block;width:34px;height:12px;vertical-align:-1px;
margin-right:6px}
.legend .item svg{width:12px}
.memory{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));
gap:12px}
.memory .card{padding:12px}.memory h3{margin:0 0 6px;font-size:13px}
.scroll{overflow-x:auto}details{margin-top:12px}summary{cursor:pointer}
footer{margin-top:40px;color:var(--soft);font-size:13px}
)css";

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_STYLE_H_
