"use strict";
// Read-outs by pointer and keyboard, curves that can be hidden, and a button that copies. All figures
// are in the page's tables; without this script they, the drawing and the legend are still there.
(() => {
  const NEAR = 40; // pixels within which the pointer picks a point

  // The centre of a marker in a window of any width.
  const centre = (marker) => {
    const box = marker.getBoundingClientRect();
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  };

  // A track is what the left and right arrows move along: a curve, the crossovers, the stars.
  const tracksOf = (figure, svg) => {
    const table = figure.querySelector("table.figures");
    const names = table && [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const textOf = (use, column) => {
      if (use.dataset.text) return use.dataset.text; // one point per device: no table
      const cells = table.tBodies[0].rows[Number(use.dataset.row)].cells;
      const how = use.classList.contains("m") ? "measured" : "predicted";
      return `${names[column]}, ${names[0]} ${cells[0].textContent}: ${cells[column].textContent}, ${how}`;
    };
    const curves = [...svg.querySelectorAll("g.series")].map((group) => {
      const column = Number(group.dataset.series) + 1;
      const points = [...group.querySelectorAll("use")].map((use) => ({
        marker: use,
        text: textOf(use, column),
      }));
      return { group, points };
    });
    const marks = [...svg.querySelectorAll("g[data-track]")].map((group) => ({
      group,
      points: [...group.querySelectorAll(".mark")].map((mark) => ({
        marker: mark,
        text: mark.querySelector("title").textContent,
      })),
    }));
    return [...curves, ...marks].filter((track) => track.points.length > 0);
  };

  const nearest = (points, x) =>
    points.reduce((best, point, i) =>
      Math.abs(centre(point.marker).x - x) < Math.abs(centre(points[best].marker).x - x) ? i : best, 0);

  const enhance = (figure) => {
    const svg = figure.querySelector("svg.plot");
    const ring = svg.querySelector(".ring");
    const tip = figure.querySelector(".tip");
    const readout = figure.querySelector(".readout");
    const tracks = tracksOf(figure, svg);
    const isShown = (track) => !track.group.classList.contains("off");
    let current = null;

    const clear = () => {
      ring.setAttribute("visibility", "hidden");
      tip.hidden = true;
    };
    const show = (track, index) => {
      const point = track.points[index];
      current = { track, index };
      const box = svg.getBoundingClientRect();
      const at = centre(point.marker);
      const [x, y] = [at.x - box.x, at.y - box.y];
      ring.setAttribute("cx", x);
      ring.setAttribute("cy", y);
      ring.setAttribute("visibility", "visible");
      readout.textContent = point.text;
      tip.textContent = point.text;
      tip.hidden = false;
      const above = y - tip.offsetHeight - 14;
      tip.style.left = `${Math.max(Math.min(x + 14, box.width - tip.offsetWidth - 4), 0)}px`;
      tip.style.top = `${above < 0 ? y + 16 : above}px`;
    };
    const turn = (step) => {
      const shown = tracks.filter(isShown);
      if (shown.length === 0) return;
      const from = current ? shown.indexOf(current.track) : -1;
      const track = shown[(from + step + shown.length) % shown.length];
      const near = current ? current.track.points[current.index] : track.points[0];
      show(track, nearest(track.points, centre(near.marker).x));
    };
    const move = (index) => {
      const last = current.track.points.length - 1;
      show(current.track, Math.min(Math.max(index, 0), last));
    };

    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.addEventListener("focus", () => {
      if (!svg.matches(":focus-visible")) return;
      if (current && isShown(current.track)) show(current.track, current.index);
      else { current = null; turn(1); }
    });
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "Escape") { clear(); return; }
      const isPlaced = current && isShown(current.track);
      const moves = {
        ArrowUp: () => turn(-1),
        ArrowDown: () => turn(1),
        ArrowLeft: () => (isPlaced ? move(current.index - 1) : turn(1)),
        ArrowRight: () => (isPlaced ? move(current.index + 1) : turn(1)),
        Home: () => (isPlaced ? move(0) : turn(1)),
        End: () => (isPlaced ? move(Infinity) : turn(1)),
      };
      if (!Object.hasOwn(moves, event.key)) return;
      event.preventDefault();
      moves[event.key]();
    });

    svg.addEventListener("pointermove", (event) => {
      let best = null;
      for (const track of tracks.filter(isShown)) {
        track.points.forEach((point, index) => {
          const at = centre(point.marker);
          const distance = Math.hypot(at.x - event.clientX, at.y - event.clientY);
          if (distance < (best ? best.distance : NEAR)) best = { track, index, distance };
        });
      }
      if (best) show(best.track, best.index);
      else clear();
    });
    svg.addEventListener("pointerleave", clear);

    for (const item of figure.querySelectorAll(".legend li[data-series]")) {
      const group = svg.querySelector(`g.series[data-series="${Number(item.dataset.series)}"]`);
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!group.classList.contains("off")));
      button.append(...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        const isHidden = group.classList.toggle("off");
        button.setAttribute("aria-pressed", String(!isHidden));
        readout.textContent = `${button.textContent} ${isHidden ? "hidden" : "shown"}`;
        if (current && current.track.group === group) { current = null; clear(); }
      });
    }
  };

  for (const figure of document.querySelectorAll("figure.chart")) enhance(figure);

  const command = document.querySelector(".command");
  command?.querySelector("button").addEventListener("click", async () => {
    const code = command.querySelector("code");
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // without permission, or over plain http
      getSelection().selectAllChildren(code);
      if (!document.execCommand("copy")) said = "Selected: copy it with Ctrl+C";
    }
    command.querySelector("[role=status]").textContent = said;
  });
  document.documentElement.classList.add("js");
})();
