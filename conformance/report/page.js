
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const dialog = by("cell");
  let opener = null;

  const element = (name, more = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(more)) {
      if (key === "class") made.className = value;
      else if (key in made) made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const shape = (name, attributes = {}, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // The matrix: what is shown of it.
  const rows = [...document.querySelectorAll("tr[data-id]")];
  const filter = () => {
    const words = by("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const family = by("family").value;
    let shown = 0;
    for (const row of rows) {
      const text = row.querySelector("th").textContent.toLowerCase();
      const wanted = words.every((word) => text.includes(word)) &&
        (!family || row.parentElement.dataset.family === family) &&
        (!by("only").checked || row.dataset.bad === "1");
      row.hidden = !wanted;
      shown += wanted;
    }
    by("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  for (const id of ["search", "family", "only"]) by(id).addEventListener("input", filter);
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  filter();

  // A cell: its cases.
  const found = (key) => {
    const cell = data.cells[key];
    if (!cell.parts) return cell;
    const parts = cell.parts.map((part) => data.cells[part]);
    return {
      cases: parts.flatMap((part) => part.cases),
      more: parts.reduce((sum, part) => sum + part.more, 0),
    };
  };
  const open = (key) => {
    const { cases, more } = found(key);
    const id = key.split("/")[0];
    const title = document.querySelector(`button[data-key="${CSS.escape(key)}"]`).title;
    const [name, where] = [id, title.slice(id.length + 2)];
    by("cell-title").textContent = name;
    by("cell-where").textContent = where;
    by("cell-sentence").textContent = data.sentences[id] || "";
    const made = cases.map(caseOf);
    const list = made.map(([box]) => box);
    by("cell-cases").replaceChildren(...list, ...(more ? [element("p", { class: "meta" },
      `and ${more} more in the records`)] : []));
    outcomes(cases, list);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    by("cell-title").focus();
    if (list.length) {
      list[0].open = true;
      made[0][1]();  // its event comes later
    }
    history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  };
  const outcomes = (cases, list) => {
    const counts = new Map();
    for (const one of cases) counts.set(one.outcome, (counts.get(one.outcome) || 0) + 1);
    by("cell-outcomes").replaceChildren(...[...counts].map(([outcome, count]) => {
      const button = element("button", { type: "button", class: outcome, "aria-pressed": "true" },
        `${count} ${outcome}`);
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        cases.forEach((one, place) => { if (one.outcome === outcome) list[place].hidden = !on; });
      });
      return button;
    }));
  };
  const caseOf = (one) => {
    const box = element("details", { class: "case" }, element("summary", {},
      element("span", { class: `badge ${one.outcome}` }, one.outcome),
      element("span", { class: "case-id" }, one.case)));
    let filled = false;  // most are never opened
    const fill = () => {
      if (!box.open || filled) return;
      filled = true;
      const inside = element("div", { class: "inside" });
      box.append(inside);
      const seen = one.times > 1 ? `; the worst of ${one.times} records` : "";
      inside.append(element("p", { class: "meta" },
        `${one.where}; ${data.environments[one.environment]}${seen}`));
      if (one.expected) inside.append(element("p", { class: "xfail" }, `The ledger: ${one.expected}`));
      if (one.ratio !== null) inside.append(gauge(one));
      inside.append(element("pre", { class: "message" }, one.message || "(no message)"));
      inside.append(repro(one.repro));
      if (one.schedule && one.schedule.items.length) {
        const style = getComputedStyle(inside);
        const room = inside.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        inside.append(drawing(one.schedule, Math.floor(room) - 2));
      }
    };
    box.addEventListener("toggle", fill);
    return [box, fill];
  };
  const gauge = (one) => {
    const number = typeof one.ratio === "number" ? one.ratio : Infinity;
    const fill = element("i", { class: number > 1 ? "over" : "" });
    fill.style.width = `${Math.min(100, number * 50)}%`;
    const said = typeof one.ratio === "number" ? one.ratio.toPrecision(3) : one.ratio;
    const error = typeof one.error === "number" ? one.error.toExponential(1) : one.error;
    return element("div", { class: "gauge" },
      element("span", { class: "track", title: "the line is the bound" }, fill, element("u")),
      element("span", {}, `worst error is ${said} of its bound; worst row's relative error ${error}`));
  };
  const repro = (line) => {
    const text = element("pre", { class: "line" }, line);
    const button = element("button", { type: "button", class: "copy" }, "copy");
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(line);
      } catch {  // no clipboard here: at least mark the line
        getSelection().selectAllChildren(text);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "copied" : "marked";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    return element("div", { class: "repro" }, text, button);
  };

  // A schedule: a lane per cluster, a bar per work item.
  const TILE = 64;
  let hatches = 0;
  const hatch = () => {
    const id = `hatch-${hatches++}`;
    return [id, shape("pattern", { id, class: "hatched", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      shape("path", { d: "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2" }))];
  };
  const maskedEnd = (item, touches) => {
    if (touches) return item.touched ? item.touched[1] + 1 : item.end;
    const tiles = Math.ceil(Math.max(0, item.end - item.kv_start) / TILE);
    return Math.min(item.load_end, item.kv_start + tiles * TILE);
  };
  const drawing = (schedule, room) => {
    const items = schedule.items;
    const last = Math.max(1, ...items.map((i) => Math.max(i.planned_end, i.end, i.valid, i.touched ? i.touched[1] + 1 : 0)));
    const narrow = room < 520;
    const left = narrow ? 92 : 150, right = 12, top = 22, step = 24;
    const height = top + step * items.length + 6;
    const width = Math.max(280, room - (height > 540 ? 18 : 0));  // beside its scroll bar
    const x = (position) => left + (width - left - right) * Math.min(Math.max(position, 0), last) / last;
    const [id, pattern] = hatch();
    const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${items.length} work items of ${schedule.clusters} clusters` }, shape("defs", {}, pattern));
    const lanes = shape("g"), grid = shape("g"), bars = shape("g");
    picture.append(lanes, grid, bars);
    const ticks = last <= 16 * TILE && last >= TILE ? TILE : Math.max(1, 10 ** Math.floor(Math.log10(last)));
    const labels = Math.max(1, Math.ceil(last / ticks / (narrow ? 4 : 9)));
    for (let tick = 0, n = 0; tick <= last; tick += ticks, n++) {
      grid.append(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top - 4, y2: height }));
      if (n % labels === 0) grid.append(text(x(tick), top - 8, String(tick), "middle"));
    }
    if (last % (ticks * labels) > 0.12 * last) grid.append(text(x(last), top - 8, String(last), "end"));
    let cluster = null, count = 0;
    items.forEach((item, place) => {
      const y = top + step * place;
      if (item.cluster !== cluster) {
        cluster = item.cluster;
        count += 1;
      }
      if (count % 2) lanes.append(shape("rect", { class: "lane", x: 0, y, width, height: step }));
      const same = place > 0 && items[place - 1].cluster === item.cluster;
      const name = narrow ? `c${item.cluster}` : `cluster ${item.cluster}`;
      if (!same) bars.append(text(4, y + 15, name));
      bars.append(text(narrow ? 44 : 84, y + 15, narrow ? `row ${item.row}` : `row ${item.row}${item.q_start ? ` q${item.q_start}` : ""}`));
      bars.append(bar(item, y + 5, x, id, schedule.touches));
    });
    const hidden = schedule.truncated ? "; more are left out" : "";
    const busy = new Set(items.map((item) => item.cluster)).size;
    return element("figure", {},
      element("figcaption", {}, `The schedule after the clamp: ${items.length} work items on ${busy} of ${schedule.clusters} clusters${hidden}. Across: position in the row's index list.`),
      legend(schedule.touches),
      element("div", { class: "canvas" }, picture));
  };
  const text = (x, y, said, anchor = "start") => {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = said;
    return made;
  };
  const bar = (item, y, x, hatchId, touches) => {
    const group = shape("g", { class: "item" });
    const range = (from, to, attributes, dy = 0, height = 9) => {
      if (to > from) group.append(shape("rect", { x: x(from), y: y + dy, width: Math.max(1, x(to) - x(from)), height, ...attributes }));
    };
    const title = shape("title");
    const touched = !touches ? "not observed" : item.touched ? `${item.touched[0]} to ${item.touched[1]}` : "nothing";
    title.textContent = `cluster ${item.cluster}, row ${item.row}, packed row ${item.q_start}\n` +
      `planned [${item.kv_start}, ${item.planned_end})\ncounted [${item.kv_start}, ${item.end})\n` +
      `kv_len (loads end) ${item.load_end}\nvalid entries of the row ${item.valid}\ntouched ${touched}`;
    group.append(title, shape("rect", { x: x(0), y: y - 3, width: x(Infinity) - x(0), height: 20, fill: "transparent" }));
    const counted = Math.max(item.kv_start, Math.min(item.end, item.valid));
    range(item.kv_start, counted, { class: "valid" });
    range(Math.max(item.kv_start, counted), item.end, { class: "wrong" });
    range(Math.max(item.kv_start, item.end), maskedEnd(item, touches), { class: "masked", fill: `url(#${hatchId})` });
    range(item.kv_start, item.planned_end, { class: "planned" });
    if (item.touched) {
      const [first, end] = [item.touched[0], item.touched[1] + 1];
      range(first, Math.min(end, item.valid), { class: "touched" }, 11, 3);
      range(Math.max(first, item.valid), end, { class: "beyond" }, 11, 3);
    }
    group.append(shape("line", { class: "count", x1: x(item.valid), x2: x(item.valid), y1: y - 3, y2: y + 15 }));
    return group;
  };
  const legend = (touches) => {
    const entry = (kind, said) => {
      const [id, pattern] = hatch();
      const mark = shape("svg", { width: 22, height: 12, "aria-hidden": "true" }, shape("defs", {}, pattern));
      if (kind === "count") mark.append(shape("line", { class: kind, x1: 11, x2: 11, y1: 0, y2: 12 }));
      else {
        const thin = kind === "touched" || kind === "beyond";
        const fill = kind === "masked" ? { fill: `url(#${id})` } : {};
        mark.append(shape("rect", { class: kind, x: 1, y: thin ? 5 : 2, width: 20, height: thin ? 3 : 9, ...fill }));
      }
      return element("li", {}, mark, said);
    };
    return element("ul", { class: "key" },
      entry("planned", "planned"), entry("valid", "valid and counted"), entry("wrong", "counted, not valid"),
      entry("masked", touches ? "loaded and masked" : "may be loaded, masked"),
      ...(touches ? [entry("touched", "touched"), entry("beyond", "touched behind the valid entries")] : []),
      entry("count", "the row's valid count"));
  };

  // Ways in and out.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-key]");
    if (!button) return;
    opener = button;
    open(button.dataset.key);
  });
  by("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => {
    history.replaceState(null, "", location.pathname + location.search);
    if (opener) opener.focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !dialog.open && document.activeElement !== by("search")) {
      event.preventDefault();
      by("search").focus();
    }
  });
  const asked = decodeURIComponent(location.hash.slice(1));
  if (Object.hasOwn(data.cells, asked)) open(asked);
})();
