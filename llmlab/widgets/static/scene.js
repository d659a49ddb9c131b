// Reads the scenes that llmlab.widgets.scene_json writes.

async function unpack(bytes) {
  if (!bytes || !bytes.byteLength) return null;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const scene = JSON.parse(await new Response(stream).text());
  scene.marks = scene.marks.map(read);
  return scene;
}

function read([kind, ...v]) {
  if (kind === "r") {
    const [x, y, w, h, fill = "", stroke = "", width = 1, flags = 0, opacity = 1, tip = "", key = 0] = v;
    return { kind, x, y, w, h, fill, stroke, width, hatch: flags & 1, dash: flags & 2, opacity, tip, key };
  }
  if (kind === "t") {
    const [x, y, text, size = 12, fill = "ink", on = "", anchor = 0, flags = 0, tip = "", key = 0] = v;
    return { kind, x, y, text, size, fill, on, anchor, mono: flags & 1, bold: flags & 2, tip, key };
  }
  if (kind === "l") {
    const [points, stroke = "line", width = 1, flags = 0, tip = "", key = 0] = v;
    return { kind, points, stroke, width, dash: flags & 2, tip, key };
  }
  const [x, y, cw, ch, rows, columns, packed, hue, rowKeys, columnKeys, rowLabels, columnLabels] = v;
  const cells = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  return { kind, x, y, cw, ch, rows, columns, cells, hue, rowKeys, columnKeys, rowLabels, columnLabels, tip: "", key: 0 };
}
