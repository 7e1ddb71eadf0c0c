"use strict";
(() => {
  const all = (root, selector) => [...root.querySelectorAll(selector)];
  document.documentElement.classList.remove("without");

  // Theme: for this page only, nothing is stored.
  document.getElementById("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });

  // Missing values come last in either direction; what is equal stays in its order.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };

  // Tables: the first click on a head puts the best on top, the next turns the order.
  for (const table of all(document, "table[data-sort]")) {
    const body = table.tBodies[0];
    const heads = all(table, "thead th");
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const start = head.dataset.first === "high" ? "descending" : "ascending";
        const other = start === "descending" ? "ascending" : "descending";
        const order = head.getAttribute("aria-sort") === start ? other : start;
        for (const one of heads) if (one.hasAttribute("aria-sort")) one.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order);
        const value = (row) => {
          const text = row.cells[column].dataset.v;
          if (text === "") return null;
          return column === 0 ? text : Number(text);
        };
        const rows = all(body, "tr").map((row) => [value(row), row]);
        rows.sort((a, b) => compare(a[0], b[0], order === "ascending" ? 1 : -1));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  // Curves: names switch methods; the one pointed at stands out.
  for (const part of all(document, "[data-curves]")) {
    const keys = all(part, "button.key");
    const series = (key) => all(part, `.chart .series[data-method="${key.dataset.method}"]`);
    const show = (key, on) => {
      key.setAttribute("aria-pressed", on);
      for (const one of series(key)) one.style.display = on ? "" : "none";
    };
    const light = (key, on) => {
      for (const chart of all(part, ".chart")) chart.classList.toggle("lit", on && key.getAttribute("aria-pressed") === "true");
      for (const one of series(key)) one.classList.toggle("on", on);
    };
    for (const key of keys) {
      key.addEventListener("click", () => {
        show(key, key.getAttribute("aria-pressed") !== "true");
        light(key, true);
      });
      for (const type of ["pointerenter", "focus"]) key.addEventListener(type, () => light(key, true));
      for (const type of ["pointerleave", "blur"]) key.addEventListener(type, () => light(key, false));
    }
    part.querySelector("[data-all]").addEventListener("click", () => {
      const on = keys.some((key) => key.getAttribute("aria-pressed") !== "true");
      for (const key of keys) show(key, on);
    });
  }

  // Cost: one drawing for each pair of axes, one of them shown.
  for (const part of all(document, "[data-costs]")) {
    const picks = all(part, "select");
    const figures = all(part, "figure");
    for (const pick of picks) {
      pick.addEventListener("change", () => {
        for (const figure of figures) figure.hidden = picks.some((one) => figure.dataset[one.dataset.pick] !== one.value);
      });
    }
  }

  // Wall.
  for (const wall of all(document, "[data-wall]")) {
    const data = JSON.parse(wall.querySelector("script").textContent);
    const list = wall.querySelector(".tiles");
    const tiles = all(list, ".tile");
    const status = wall.querySelector("[role=status]");
    const pick = Object.fromEntries(all(wall, "[data-pick]").map((one) => [one.dataset.pick, one]));
    const chosen = (select) => select.selectedOptions[0].text;

    const sort = () => {
      const by = pick.sort.value;
      const value = (tile) => {
        const i = Number(tile.dataset.index);
        if (by === "image") return data.names[i];
        return by === "score" ? data.scores[i][pick.method.value][pick.metric.value] : data.disagreement[i];
      };
      const sign = pick.order.value === "up" ? 1 : -1;
      // Equal ones in the order of the images, whatever order they were in before.
      const rows = tiles.map((tile) => [value(tile), tile]).sort((a, b) => a[1].dataset.index - b[1].dataset.index);
      rows.sort((a, b) => compare(a[0], b[0], sign));
      list.append(...rows.map(([, tile]) => tile));
      pick.method.parentElement.hidden = by !== "score";
      const what = by === "score" ? `${chosen(pick.metric)} of ${chosen(pick.method)}` : by;
      status.textContent = `${tiles.length} image${tiles.length === 1 ? "" : "s"} by ${what}, ${chosen(pick.order)}.`;
    };
    const text = (value, digits) => {
      if (value === null) return "–";
      return (digits === null ? value.toPrecision(3) : value.toFixed(digits)).replace("-", "−");
    };
    const score = () => {
      for (const tile of tiles) {
        for (const map of all(tile, ".map")) {
          const value = data.scores[tile.dataset.index][map.dataset.method][pick.metric.value];
          map.querySelector(".score").textContent = text(value, data.digits[pick.metric.value]);
        }
      }
    };
    pick.sort.addEventListener("change", () => {
      pick.order.value = pick.sort.value === "image" ? "up" : "down";
      sort();
    });
    for (const key of ["order", "method"]) pick[key].addEventListener("change", sort);
    if (pick.metric) {
      pick.metric.addEventListener("change", () => {
        score();
        sort();
      });
    }
    pick.opacity.addEventListener("input", () => wall.style.setProperty("--opacity", pick.opacity.value / 100));
    pick.size.addEventListener("input", () => wall.style.setProperty("--size", `${pick.size.value}px`));
    const grey = () => wall.classList.toggle("grey", pick.grey.checked);
    pick.grey.addEventListener("change", grey);
    for (const box of all(wall, "[data-show]")) {
      box.addEventListener("change", () => {
        for (const map of all(list, `.map[data-method="${box.dataset.show}"]`)) map.hidden = !box.checked;
      });
    }
    pick.size.value = parseInt(getComputedStyle(wall).getPropertyValue("--size"), 10);
    grey();
    sort();
  }
})();
