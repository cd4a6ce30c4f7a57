// Before the first paint: marks that scripts run, and restores the last chosen theme.
document.documentElement.classList.add("js");
try {
  const chosen = localStorage.getItem("scaleproof-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* browsers may deny storage to local files */ }
