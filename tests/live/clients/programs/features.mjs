// How a program tells what it tried: one JSON object a line.

import assert from "node:assert/strict";

export const url = process.env.HELEXA_URL;
export const model = "hermes";
export const smallContext = "small";
export const apiKey = "none";
export { assert };

export async function feature(name, attempt) {
  const result = { feature: name, problem: null };
  try {
    await attempt();
  } catch (error) {
    result.problem = String(error?.message ?? error).slice(0, 600);
  }
  console.log(JSON.stringify(result));
}

/** The error that `attempt` ends with. */
export async function refused(attempt) {
  try {
    await attempt();
  } catch (error) {
    return error;
  }
  throw new Error("it was not refused");
}

export async function collected(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}
