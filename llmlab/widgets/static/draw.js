// Draws marks on a canvas in the colours of a theme.

const SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";
const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const ANCHORS = ["left", "center", "right"];

function font(mark) {
  return `${mark.bold ? "600 " : ""}${mark.size}px ${mark.mono ? MONO : SANS}`;
}

function drawRect(c, m, theme) {
  const inset = m.stroke ? m.width / 2 : 0;
  const box = [m.x + inset, m.y + inset, Math.max(m.w - 2 * inset, 0.4), Math.max(m.h - 2 * inset, 0.4)];
  c.globalAlpha = m.opacity;
  if (m.fill) {
    c.fillStyle = theme.colours[m.fill];
    c.fillRect(...box);
  }
  if (m.stroke) {
    c.strokeStyle = theme.colours[m.stroke];
    c.lineWidth = m.width;
    c.setLineDash(m.dash ? [3, 2] : []);
    c.strokeRect(...box);
  }
  c.globalAlpha = 1;
  if (m.hatch) {
    const ink = m.fill ? theme.on[m.fill] : theme.colours.muted;
    path(c, [m.x, m.y + m.h, m.x + m.w, m.y], ink, 1, []);
  }
}

function path(c, points, colour, width, dash) {
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.setLineDash(dash);
  c.beginPath();
  for (let i = 0; i < points.length; i += 2) c.lineTo(points[i], points[i + 1]);
  c.stroke();
}

function drawText(c, m, theme) {
  c.font = font(m);
  c.textAlign = ANCHORS[m.anchor];
  c.fillStyle = m.on ? theme.on[m.on] : theme.colours[m.fill];
  c.fillText(m.text, m.x, m.y);
}

function rgb(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function drawGrid(c, m, theme) {
  if (m.painted?.theme !== theme) m.painted = { theme, canvas: paintGrid(m, theme) };
  c.imageSmoothingEnabled = false;
  c.drawImage(m.painted.canvas, m.x, m.y, m.cw * m.columns, m.ch * m.rows);
}

function paintGrid(m, theme) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(m.columns, 1), Math.max(m.rows, 1)];
  const pixels = new ImageData(canvas.width, canvas.height);
  const [low, high] = [rgb(theme.colours.panel), rgb(theme.colours[m.hue])];
  m.cells.forEach((level, i) => {
    if (level === 255) return;
    for (let k = 0; k < 3; k++) pixels.data[4 * i + k] = low[k] + ((high[k] - low[k]) * level) / 254;
    pixels.data[4 * i + 3] = 255;
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

const DRAW = {
  r: drawRect,
  t: drawText,
  l: (c, m, theme) => path(c, m.points, theme.colours[m.stroke], m.width, m.dash ? [4, 3] : []),
  g: drawGrid,
};
