// Keys for the inspector: j and k move over rows, Enter opens, Esc goes back, / goes to the filters.
// Nothing here is needed to use the pages.
(function () {
  "use strict";
  function rows() {
    return Array.from(document.querySelectorAll("[data-row], a.rowlink"));
  }
  function move(step) {
    var all = rows();
    if (!all.length) return;
    var at = all.indexOf(document.activeElement);
    if (at < 0) at = all.indexOf(document.querySelector("[data-row][aria-current]"));
    var next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step));
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "j" || event.key === "k") {
      move(event.key === "j" ? 1 : -1);
      event.preventDefault();
    } else if (event.key === "Escape") {
      var current = document.querySelector("[data-row][aria-current]");
      if (current) current.focus();
    } else if (event.key === "/") {
      var filter = document.querySelector(".filters select");
      if (filter) {
        filter.focus();
        event.preventDefault();
      }
    }
  });
  // The record beside the run belongs to the row it was opened from, also after the timeline was drawn again.
  var opened = null;
  function markOpened() {
    document.querySelectorAll("[data-row][aria-current]").forEach(function (row) {
      row.removeAttribute("aria-current");
    });
    if (!opened) return;
    var row = Array.from(document.querySelectorAll("[data-row]")).find(function (one) {
      return one.getAttribute("hx-get") === opened;
    });
    if (row) row.setAttribute("aria-current", "true");
  }
  document.addEventListener("htmx:afterSwap", function (event) {
    if (event.target.id === "record") {
      var from = event.detail.requestConfig && event.detail.requestConfig.elt;
      opened = from ? from.getAttribute("hx-get") : opened;
      // Opened with a key, it is what is read next; Esc goes back to the row.
      var by = event.detail.requestConfig && event.detail.requestConfig.triggeringEvent;
      if (by && by.detail === 0 && document.activeElement === from) event.target.focus({ preventScroll: true });
      if (window.matchMedia("(max-width: 60rem)").matches) event.target.scrollIntoView({ block: "start" });
    }
    if (event.target.id === "answer") {
      document.getElementById("answer-card").hidden = event.target.textContent === "";
    }
    markOpened();
  });
  // A page that is left closes its streams itself; the browser would report each as an error.
  var streams = [];
  if (window.htmx) {
    window.htmx.createEventSource = function (url) {
      var stream = new EventSource(url);
      streams.push(stream);
      return stream;
    };
  }
  window.addEventListener("pageshow", function (event) {
    if (event.persisted) window.location.reload();
  });
  window.addEventListener("beforeunload", function () {
    streams.forEach(function (stream) {
      stream.close();
    });
  });
  // What had the focus keeps it when a live part is drawn again, and what was open stays open. (What has an id keeps
  // its focus by htmx itself.)
  var focused = null;
  var open = [];
  document.addEventListener("htmx:beforeSwap", function (event) {
    var active = document.activeElement;
    focused = active && event.target.contains(active) ? active.getAttribute("href") : null;
    open = Array.from(event.target.querySelectorAll("details[id][open]")).map(function (one) {
      return one.id;
    });
  });
  // At once, not when the part has settled: a key that is pressed in between would go nowhere.
  document.addEventListener("htmx:afterSwap", function (event) {
    open.forEach(function (id) {
      var same = document.getElementById(id);
      if (same) same.open = true;
    });
    open = [];
    if (!focused) return;
    var same = Array.from(document.querySelectorAll("main a[href]")).find(function (one) {
      return one.getAttribute("href") === focused;
    });
    if (!same) same = event.target.querySelector("[data-row]"); // a folded line gave way to what it stood for
    if (same) same.focus({ preventScroll: true });
    focused = null;
  });
})();
