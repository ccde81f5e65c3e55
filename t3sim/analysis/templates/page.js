"use strict";
// Sorts and filters the tables of this page. The address says what is shown, so that a view can be linked to:
// #table=results-1&sort=speedup&order=descending&filter=FC-2&columns=all
(function () {
  function columnOf(table, name) {
    return Array.from(table.tHead.rows[0].cells).findIndex((cell) => cell.dataset.name === name);
  }

  function compare(a, b) {
    const x = parseFloat(a), y = parseFloat(b);
    const areNumbers = a !== "" && b !== "" && !isNaN(a) && !isNaN(b);
    return areNumbers ? x - y : a.localeCompare(b, undefined, { numeric: true });
  }

  function sort(table, name, order) {
    const index = columnOf(table, name);
    if (index < 0) return;
    const value = (row) => row.cells[index].dataset.value ?? row.cells[index].textContent.trim();
    const sign = order === "descending" ? -1 : 1;
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === ""); // absent values stay last
      return sign * compare(x, y);
    });
    table.tBodies[0].append(...rows);
    for (const cell of table.tHead.rows[0].cells) {
      if (cell.dataset.name === name) cell.setAttribute("aria-sort", order);
      else cell.removeAttribute("aria-sort");
    }
  }

  function filter(table, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
      if (!row.hidden) shown += 1;
    }
    const count = document.querySelector(`[data-count="${table.id}"]`);
    if (count) count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  }

  function showAll(table, all) {
    table.classList.toggle("brief", !all);
  }

  function remember(table, changes) {
    const state = new URLSearchParams(location.hash.slice(1));
    if (state.get("table") !== table.id) for (const key of Array.from(state.keys())) state.delete(key);
    state.set("table", table.id);
    for (const [key, value] of Object.entries(changes)) value ? state.set(key, value) : state.delete(key);
    history.replaceState(null, "", `#${state}`);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const cell of table.tHead.rows[0].cells) {
      cell.querySelector("button").addEventListener("click", () => {
        const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        sort(table, cell.dataset.name, order);
        remember(table, { sort: cell.dataset.name, order });
      });
    }
    filter(table, "");
  }
  for (const box of document.querySelectorAll("input[data-filter]")) {
    const table = document.getElementById(box.dataset.filter);
    box.addEventListener("input", () => {
      filter(table, box.value);
      remember(table, { filter: box.value });
    });
  }
  for (const box of document.querySelectorAll("input[data-columns]")) {
    const table = document.getElementById(box.dataset.columns);
    box.addEventListener("change", () => {
      showAll(table, box.checked);
      remember(table, { columns: box.checked ? "all" : "" });
    });
  }

  const state = new URLSearchParams(location.hash.slice(1));
  const table = document.getElementById(state.get("table") ?? "");
  if (table && table.matches("table.sortable")) {
    if (state.get("columns") === "all") {
      showAll(table, true);
      document.querySelector(`input[data-columns="${table.id}"]`).checked = true;
    }
    if (state.get("sort")) sort(table, state.get("sort"), state.get("order") ?? "ascending");
    if (state.get("filter")) {
      document.querySelector(`input[data-filter="${table.id}"]`).value = state.get("filter");
      filter(table, state.get("filter"));
    }
  }
  document.documentElement.dataset.ready = "yes";
})();
