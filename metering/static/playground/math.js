// TeX of answers as one line of Unicode. What is not known here stays as it was written. Pure.

const SIGNS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", theta: "θ", lambda: "λ", mu: "μ",
  pi: "π", rho: "ρ", sigma: "σ", tau: "τ", phi: "φ", psi: "ψ", omega: "ω", Gamma: "Γ", Delta: "Δ",
  Sigma: "Σ", Omega: "Ω", cdot: "·", times: "×", div: "÷", pm: "±", le: "≤", leq: "≤", ge: "≥",
  geq: "≥", ne: "≠", neq: "≠", approx: "≈", infty: "∞", sum: "∑", prod: "∏", int: "∫", partial: "∂",
  nabla: "∇", to: "→", rightarrow: "→", Rightarrow: "⇒", in: "∈", notin: "∉", forall: "∀",
  exists: "∃", cup: "∪", cap: "∩", subset: "⊂", ldots: "…", dots: "…", quad: " ", left: "", right: "",
};
const RAISED = "0123456789+-=()n", RAISED_AS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ";
const LOWERED = "0123456789+-=()", LOWERED_AS = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎";
const GROUP = "\\{([^{}]*)\\}";

export function mathText(tex) {
  let text = tex.trim().replace(/\\([A-Za-z]+)/g, (whole, name) => SIGNS[name] ?? whole);
  for (let before = ""; before !== text; ) {
    // From the inside out: a group is replaced once it holds no other.
    before = text;
    text = text
      .replace(new RegExp(`\\\\d?frac\\s*${GROUP}\\s*${GROUP}`, "g"), (_, top, bottom) => `${inParts(top)}/${inParts(bottom)}`)
      .replace(new RegExp(`\\\\sqrt\\s*${GROUP}`, "g"), (_, inner) => `√${inParts(inner)}`)
      .replace(new RegExp(`\\\\(?:text|mathrm|mathbf|operatorname)\\s*${GROUP}`, "g"), "$1")
      .replace(new RegExp(`\\^${GROUP}`, "g"), (_, inner) => shifted(inner, RAISED, RAISED_AS) ?? `^(${inner})`)
      .replace(new RegExp(`_${GROUP}`, "g"), (_, inner) => shifted(inner, LOWERED, LOWERED_AS) ?? `_(${inner})`);
  }
  return text
    .replace(/\\[,;:! ]/g, " ")
    .replace(/\^(\w)/g, (whole, one) => shifted(one, RAISED, RAISED_AS) ?? whole)
    .replace(/_(\w)/g, (whole, one) => shifted(one, LOWERED, LOWERED_AS) ?? whole);
}

function inParts(inner) {
  return /^[\p{L}\p{N}_.]*$/u.test(inner) ? inner : `(${inner})`;
}

// Null where one of its signs has no such form.
function shifted(text, from, as) {
  const places = [...text].map((one) => from.indexOf(one));
  return places.includes(-1) ? null : places.map((place) => [...as][place]).join("");
}
