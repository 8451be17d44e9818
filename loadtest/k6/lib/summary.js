// The results of a run: a table on the terminal, `summary.json` for programs, `summary.html` for
// people.

import { PHASES, SHOWN } from './plan.js';

const ORDER = Object.values(PHASES).flatMap((phases) => phases.map(([phase]) => phase));
const PERCENTILES = ['med', 'p(90)', 'p(95)', 'p(99)', 'max'];

function round(number) {
  return Math.round(number * 100) / 100;
}

// Splits a metric's name from its tags.
export function split(name) {
  const match = /^([^{]+)(?:\{(.*)\})?$/.exec(name);
  const tags = match[2] ? match[2].split(',').map((tag) => [tag.slice(0, tag.indexOf(':')), tag.slice(tag.indexOf(':') + 1)]) : [];
  return { metric: match[1], tags: Object.fromEntries(tags) };
}

// Turns k6's data into figures of operations, counts, and levels that hold or do not.
export function digest(data, about) {
  const seconds = data.state.testRunDurationMs / 1000;
  const levels = [];
  const operations = [];
  const counts = {};
  for (const [name, { type, values, thresholds }] of Object.entries(data.metrics)) {
    const { metric, tags } = split(name);
    for (const [level, { ok }] of Object.entries(thresholds || {})) {
      if (level === SHOWN) continue;
      const figure = /^p\((\d+)\)/.test(level) ? values[level.slice(0, level.indexOf(')') + 1)] : values.count !== undefined ? values.count : values.rate;
      levels.push({ metric: name, level, measured: round(figure || 0), holds: ok });
    }
    if (metric === 'op_duration' && tags.op) {
      const done = data.metrics[`ops{op:${tags.op}}`];
      const latency = Object.fromEntries(PERCENTILES.map((part) => [part, round(values[part])]));
      // The count of a phase is that of its durations.
      const count = tags.phase || !done ? values.count : done.values.count;
      operations.push({ op: tags.op, phase: tags.phase || null, count, latency_ms: latency });
    }
    const own = !name.includes('{') && !/^(http_|data_|vus|iteration|grpc_|op_duration|group_|checks)/.test(name);
    if (own) counts[name] = round(type === 'rate' ? values.rate : values.count);
  }
  levels.sort((one, other) => Number(one.holds) - Number(other.holds) || (one.metric < other.metric ? -1 : 1));
  operations.sort((one, other) => (one.op === other.op ? ORDER.indexOf(one.phase) - ORDER.indexOf(other.phase) : one.op < other.op ? -1 : 1));
  const attempts = data.metrics.grpc_req_duration;
  return {
    ...about,
    seconds: round(seconds),
    holds: levels.every((level) => level.holds),
    operations,
    operations_per_second: round((counts.ops || 0) / seconds),
    attempts_ms: attempts ? Object.fromEntries(PERCENTILES.map((part) => [part, round(attempts.values[part])])) : null,
    counts,
    levels,
  };
}

function table(head, rows) {
  const widths = head.map((cell, column) => Math.max(...[head, ...rows].map((row) => `${row[column]}`.length)));
  return [head, ...rows].map((row) => `  ${row.map((cell, column) => `${cell}`.padEnd(widths[column])).join('  ')}`.trimEnd()).join('\n');
}

const OPERATION_HEAD = ['operation', 'phase', 'count', 'p50 ms', 'p90 ms', 'p95 ms', 'p99 ms', 'max ms'];
function operationRows(result) {
  return result.operations.map(({ op, phase, count, latency_ms: latency }) => [op, phase || '', count, ...PERCENTILES.map((part) => latency[part])]);
}

export function text(result) {
  const missed = result.levels.filter((level) => !level.holds);
  const lines = [
    `${result.scenario}: ${result.holds ? 'all levels hold' : `${missed.length} OF ${result.levels.length} LEVELS DO NOT HOLD`}`,
    table(OPERATION_HEAD, operationRows(result)),
    `  ${Object.entries(result.counts).map(([name, count]) => `${name} ${count}`).join(', ')}`,
    ...missed.map(({ metric, level, measured }) => `  MISSED ${metric} ${level}: ${measured}`),
  ];
  return `${lines.join('\n')}\n`;
}

function escaped(text) {
  return `${text}`.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');
}

function rowsOf(head, rows) {
  const line = (cells, tag) => `<tr>${cells.map((cell) => `<${tag}>${cell}</${tag}>`).join('')}</tr>`;
  return `<table>${line(head.map(escaped), 'th')}${rows.map((row) => line(row, 'td')).join('')}</table>`;
}

const STYLE = `body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b2a20}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:right;padding:.2rem .8rem;border-bottom:1px solid #dde5df}
th:first-child,td:first-child{text-align:left}.yes{color:#1a7f37}.no{color:#c1121f;font-weight:700}
.bar{display:inline-block;height:.7rem;background:#7fb08c;vertical-align:middle}`;

export function html(result) {
  const slowest = Math.max(1, ...result.operations.map((operation) => operation.latency_ms['p(99)']));
  const bar = (latency) => `<span class="bar" style="width:${round((12 * latency) / slowest)}rem"></span>`;
  const operations = operationRows(result).map((row, at) => [...row.map(escaped), bar(result.operations[at].latency_ms['p(99)'])]);
  const verdict = (holds) => `<span class="${holds ? 'yes' : 'no'}">${holds ? 'holds' : 'DOES NOT HOLD'}</span>`;
  const levels = result.levels.map(({ metric, level, measured, holds }) => [escaped(metric), escaped(level), measured, verdict(holds)]);
  const pairs = (object) => Object.entries(object).map((pair) => pair.map(escaped));
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Coppice under load: ${escaped(result.scenario)}</title><style>${STYLE}</style></head><body>
<h1>${escaped(result.scenario)}: ${verdict(result.holds)}</h1>
<p>${escaped(result.endpoint)}, ${result.seconds} s with preparation, ${result.operations_per_second} operations a second over all of it.</p>
<h2>Operations</h2><p>With all repetitions.</p>${rowsOf([...OPERATION_HEAD, 'p99'], operations)}
<h2>Service levels</h2>${rowsOf(['metric', 'level', 'measured', ''], levels)}
<h2>Counts</h2>${rowsOf(['', ''], pairs(result.counts))}
<h2>Parameters</h2>${rowsOf(['', ''], pairs(result.parameters))}
</body></html>
`;
}

// The files that k6 writes at the end, if there is a folder for them.
export function summaries(data, about, folder) {
  const result = digest(data, about);
  const files = folder ? { [`${folder}/summary.json`]: `${JSON.stringify(result, null, 2)}\n`, [`${folder}/summary.html`]: html(result) } : {};
  return { stdout: text(result), ...files };
}
