// Which mark is where, and which marks a selection means.

const WALKED = ["position", "step", "block", "layer", "head", "wire"]; // by arrow keys, the finest first

function bounds(c, m) {
  if (m.kind === "r") return [m.x, m.y, m.w, m.h];
  if (m.kind === "g") return [m.x, m.y, m.cw * m.columns, m.ch * m.rows];
  if (m.kind === "t") {
    c.font = font(m);
    const w = c.measureText(m.text).width;
    return [m.x - (w * m.anchor) / 2, m.y - m.size * 0.85, w, m.size * 1.15];
  }
  const xs = m.points.filter((_, i) => i % 2 === 0);
  const ys = m.points.filter((_, i) => i % 2 === 1);
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return [x, y, Math.max(...xs) - x, Math.max(...ys) - y];
}

function isAt(c, m, x, y) {
  const [left, top, w, h] = bounds(c, m);
  const slack = m.kind === "l" ? 4 : m.kind === "r" && w < 6 ? 2 : 0;
  if (x < left - slack || x > left + w + slack || y < top - slack || y > top + h + slack) return false;
  return m.kind !== "l" || nearLine(m.points, x, y, slack);
}

function nearLine(p, x, y, slack) {
  for (let i = 0; i + 3 < p.length; i += 2) {
    const [dx, dy] = [p[i + 2] - p[i], p[i + 3] - p[i + 1]];
    const share = ((x - p[i]) * dx + (y - p[i + 1]) * dy) / (dx * dx + dy * dy || 1);
    const t = Math.min(Math.max(share, 0), 1);
    if (Math.hypot(p[i] + t * dx - x, p[i + 1] + t * dy - y) <= slack) return true;
  }
  return false;
}

function keyOf(scene, place) {
  return place ? scene.keys[place - 1] : {};
}

function cellAt(scene, m, x, y) {
  const [row, column] = [Math.floor((y - m.y) / m.ch), Math.floor((x - m.x) / m.cw)];
  const level = m.cells[row * m.columns + column];
  if (level === undefined || level === 255) return null;
  const key = { ...keyOf(scene, m.columnKeys[column]), ...keyOf(scene, m.rowKeys[row]) };
  const labels = [m.rowLabels[row], m.columnLabels[column], `${((level / 254) * 100).toFixed(0)} %`];
  const box = [m.x + column * m.cw, m.y + row * m.ch, m.cw, m.ch];
  return { key, tip: labels.filter(Boolean).join(" · "), box };
}

function hit(c, scene, x, y) {
  for (let i = scene.marks.length - 1; i >= 0; i--) {
    const m = scene.marks[i];
    if (!(m.tip || m.key || m.kind === "g") || !isAt(c, m, x, y)) continue;
    const found = m.kind === "g" ? cellAt(scene, m, x, y) : { key: keyOf(scene, m.key), tip: m.tip, box: bounds(c, m) };
    if (found) return found;
  }
  return null;
}

// How many fields of the selection this key names; 0 when it disagrees in one of them.
function agreement(key, selection) {
  let shared = 0;
  for (const [field, value] of Object.entries(key)) {
    if (selection[field] == null) continue;
    if (selection[field] !== value) return 0;
    shared += 1;
  }
  return shared;
}

// The marks that agree with the selection in most fields: a token rather than its request, else all of the request's.
function boxesFor(c, scene, selection) {
  if (!selection || !Object.keys(selection).length) return [];
  const shared = scene.keys.map((key) => agreement(key, selection));
  const keyed = scene.marks.filter((m) => m.key);
  const most = keyed.reduce((max, m) => Math.max(max, shared[m.key - 1]), 0);
  const found = most ? keyed.filter((m) => shared[m.key - 1] === most) : [];
  const shapes = found.filter((m) => m.kind !== "t");
  const outlined = shapes.length ? shapes : found; // not the labels beside them
  // outlining nearly everything would say nothing
  const boxes = outlined.length === 1 || outlined.length * 2 <= keyed.length ? outlined.map((m) => bounds(c, m)) : [];
  for (const m of scene.marks) if (m.kind === "g") boxes.push(...gridBoxes(m, shared));
  return boxes;
}

function gridBoxes(m, shared) {
  const places = (keys) => keys.flatMap((key, i) => (key && shared[key - 1] ? [i] : []));
  const [rows, columns] = [places(m.rowKeys), places(m.columnKeys)];
  const [width, height] = [m.cw * m.columns, m.ch * m.rows];
  if (rows.length && rows.length < m.rows) return rows.map((row) => [m.x, m.y + row * m.ch, width, m.ch]);
  return columns.length < m.columns ? columns.map((i) => [m.x + i * m.cw, m.y, m.cw, height]) : [];
}

function outline(c, boxes, theme, dash) {
  for (const [x, y, w, h] of boxes) {
    const box = [x - 1.5, y - 1.5, w + 3, h + 3];
    c.setLineDash([]);
    c.strokeStyle = theme.colours.panel;
    c.lineWidth = 4;
    c.strokeRect(...box);
    c.setLineDash(dash);
    c.strokeStyle = theme.colours.ink;
    c.lineWidth = 1.75;
    c.strokeRect(...box);
  }
}

// The places an arrow key walks through: one of each value of the finest thing that marks of this scene stand for.
function walk(scene, selection) {
  const keyed = scene.marks.filter((m) => m.key);
  const field = WALKED.find((name) => keyed.some((m) => name in keyOf(scene, m.key)));
  const seen = new Map();
  for (const m of keyed) {
    const key = keyOf(scene, m.key);
    const isOther = selection.request != null && key.request != null && key.request !== selection.request;
    if (!isOther && field in key && !seen.has(key[field])) seen.set(key[field], m);
  }
  const order = ([a], [b]) => (typeof a === "number" ? a - b : String(a) < String(b) ? -1 : 1);
  return { field, marks: [...seen].sort(order).map(([, m]) => m) };
}

// The grid a scene is about, if it is about one: arrow keys walk its cells.
function mainGrid(scene) {
  return scene.marks.find((m) => m.kind === "g" && m.cw * m.columns * m.ch * m.rows >= 0.1 * scene.w * scene.h);
}
