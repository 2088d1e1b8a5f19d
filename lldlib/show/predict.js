// An empty axis on which a curve is drawn with the mouse, a finger or five sliders.
const HEIGHT = 300, LEFT = 62, RIGHT = 14, TOP = 12, FOOT = 44, LEAST = 2, SLIDERS = 5;
const SVG = "http://www.w3.org/2000/svg";

function make(tag, set = {}, inside) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(set)) made.setAttribute(name, value);
  if (inside) inside.appendChild(made);
  return made;
}

function html(tag, set = {}, inside) {
  const made = Object.assign(document.createElement(tag), set);
  if (inside) inside.appendChild(made);
  return made;
}

// as many round steps as fit
function ticks(low, high, most) {
  const rough = (high - low) / most, ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * ten).find((s) => s >= rough - 1e-12);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9; at += step) {
    found.push(Number(at.toPrecision(6)));
  }
  return found;
}

export default {
  render({ model, el }) {
    const last = model.get("batches") - 1, first = model.get("given").length;
    const [low, high] = model.get("limits");
    const box = html("div", { className: "draw-prediction" }, el);
    Object.assign(box.style, { background: "#fff", color: "#000", font: "13px/1.5 sans-serif" });
    el.style.width = "100%";
    html("div", {
      textContent: "Draw what you expect: hold the mouse button, or your finger, and move.",
    }, box);
    const svg = make("svg", { height: HEIGHT, role: "img" }, box);
    svg.style.touchAction = "none";
    svg.style.cursor = "crosshair";
    svg.style.display = "block";
    const fold = html("details", {}, box);
    html("summary", { textContent: "Draw with sliders instead (keyboard)" }, fold);
    const button = html("button", { textContent: "Show what happened" }, box);
    button.className = "jupyter-button widget-button";
    button.style.width = "auto";
    const said = html("p", { className: "draw-sentence" }, box);
    said.setAttribute("role", "status");

    let drawing = [...model.get("drawing")], width = 640, before = null;
    const x = (batch) => LEFT + ((width - LEFT - RIGHT) * batch) / Math.max(1, last);
    const y = (value) => TOP + ((HEIGHT - TOP - FOOT) * (high - value)) / (high - low);
    const shown = () => model.get("happened").length > 0;

    function line(values, from, set) {
      let path = "", pen = false;
      values.forEach((value, i) => {
        if (value === null) { pen = false; return; }
        path += `${pen ? "L" : "M"}${x(i + from).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = true;
      });
      if (path) make("path", { d: path, fill: "none", "stroke-linejoin": "round", ...set }, svg);
    }

    function text(at, down, words, set = {}) {
      const made = make("text", { x: at, y: down, fill: "#333", "font-size": 12, ...set }, svg);
      made.textContent = words;
    }

    function draw() {
      svg.replaceChildren();
      svg.setAttribute("width", width);
      svg.setAttribute("aria-label",
        `${model.get("label")} over ${last + 1} batches. ${model.get("sentence")}`);
      for (const value of ticks(low, high, 5)) {
        make("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), stroke: "#ddd" },
          svg);
        text(LEFT - 6, y(value) + 4, String(value), { "text-anchor": "end" });
      }
      for (const batch of ticks(0, last, Math.min(last, width / 70))) {
        text(x(batch), HEIGHT - FOOT + 17, String(batch), { "text-anchor": "middle" });
      }
      make("path", {
        d: `M${LEFT} ${TOP}V${HEIGHT - FOOT}H${width - RIGHT}`, fill: "none", stroke: "#333",
      }, svg);
      text((LEFT + width) / 2, HEIGHT - 8, "batch", { "text-anchor": "middle" });
      text(0, 0, model.get("label"), {
        "text-anchor": "middle", transform: `translate(14 ${(TOP + HEIGHT - FOOT) / 2}) rotate(-90)`,
      });
      const mine = { stroke: "#333", "stroke-width": 2.5, "stroke-dasharray": "6 4" };
      const real = { stroke: model.get("colour"), "stroke-width": 2.5 };
      line(model.get("given"), 0, real);
      line(model.get("happened"), 0, { ...real, class: "happened" });
      line(drawing, 0, { ...mine, class: "drawn" });
      const key = [["your prediction", "#333"]];
      if (first || shown()) key.push(["what happened", model.get("colour")]);
      key.forEach(([words, fill], i) => {
        text(width - RIGHT - 4, TOP + 12 + 16 * i, words, { "text-anchor": "end", fill });
      });
      const enough = drawing.filter((value) => value !== null).length >= LEAST;
      button.disabled = !enough || shown();
      button.style.opacity = button.disabled ? 0.4 : 1;
      said.textContent = model.get("sentence");
      for (const slider of fold.querySelectorAll("input")) slider.disabled = shown();
    }

    function keep() {
      model.set("drawing", [...drawing]);
      model.save_changes();
    }

    function point(event) {
      const seen = svg.getBoundingClientRect();
      const share = (event.clientX - seen.left - LEFT) / (width - LEFT - RIGHT);
      const height = (event.clientY - seen.top - TOP) / (HEIGHT - TOP - FOOT);
      const value = high - Math.min(1, Math.max(0, height)) * (high - low);
      const batch = Math.round(Math.min(1, Math.max(0, share)) * last);
      return [Math.max(first, batch), Number(value.toFixed(4))];
    }

    // every batch that the pen passed between two events
    function pass([batch, value]) {
      const [from, old] = before ?? [batch, value];
      const steps = Math.abs(batch - from);
      for (let i = 0; i <= steps; i += 1) {
        const share = steps ? i / steps : 1;
        const place = from + Math.sign(batch - from) * i;
        drawing[place] = Number((old + (value - old) * share).toFixed(4));
      }
      before = [batch, value];
      draw();
    }

    svg.addEventListener("pointerdown", (event) => {
      if (shown()) return;
      svg.setPointerCapture(event.pointerId);
      before = null;
      pass(point(event));
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      if (before && !shown()) pass(point(event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      svg.addEventListener(end, () => {
        if (before) { before = null; keep(); }
      });
    }

    const anchors = [];
    for (let i = 0; i < SLIDERS; i += 1) {
      const batch = Math.round(first + ((last - first) * i) / (SLIDERS - 1));
      if (anchors.some(([place]) => place === batch)) continue;
      const row = html("label", { textContent: `batch ${batch} ` }, fold);
      row.style.display = "block";
      const slider = html("input", {
        type: "range", min: low, max: high, step: (high - low) / 50, value: (low + high) / 2,
      }, row);
      slider.setAttribute("aria-label", `${model.get("label")} at batch ${batch}`);
      slider.style.verticalAlign = "middle";
      const number = html("output", {}, row);
      anchors.push([batch, slider, number]);
      slider.addEventListener("input", () => {
        anchors.forEach(([place, one, out], k) => {
          out.textContent = ` ${Number(one.value).toFixed(2)}`;
          const [next, other] = anchors[k + 1] ?? [place, one];
          for (let at = place; at <= next; at += 1) {
            const share = next > place ? (at - place) / (next - place) : 0;
            const value = Number(one.value) * (1 - share) + Number(other.value) * share;
            drawing[at] = Number(value.toFixed(4));
          }
        });
        draw();
        keep();
      });
    }

    button.addEventListener("click", () => {
      button.disabled = true;
      model.set("asked", true);
      model.save_changes();
    });
    for (const name of ["happened", "sentence"]) model.on(`change:${name}`, draw);
    model.on("change:drawing", () => {
      drawing = [...model.get("drawing")];
      draw();
    });
    const watch = new ResizeObserver(([seen]) => {
      const now = Math.min(860, Math.round(seen.contentRect.width));
      if (now > 0 && now !== width) { width = now; draw(); }
    });
    watch.observe(box);
    draw();
    return () => watch.disconnect();
  },
};
