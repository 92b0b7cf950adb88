// What is computed anew from a text that grows, with everything that is as it was before: the page
// draws again what is another object. Pure.

// Plain data -> the same data, of which equal parts in equal places are those of `earlier`.
export function sharing(earlier, later) {
  const areLists = Array.isArray(earlier) && Array.isArray(later);
  if (!areLists && !(isRecord(earlier) && isRecord(later))) return later;
  const shared = areLists ? [] : {};
  const keys = Object.keys(later);
  let isSame = keys.length === Object.keys(earlier).length;
  for (const key of keys) {
    shared[key] = sharing(earlier[key], later[key]);
    isSame &&= shared[key] === earlier[key];
  }
  return isSame ? earlier : shared;
}

function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
