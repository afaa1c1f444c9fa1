// Random numbers from a seed, the same in every browser.

/** A function that returns numbers in [0, 1): mulberry32. */
function uniformFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** An array of normal numbers with two decimals, which are the numbers that are shown: Box and Muller. */
function normal(shape, uniform, scale = 1) {
  const draw = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return filled(shape, () => Math.round(100 * scale * draw()) / 100);
}
