// Multi-head attention as in the lessons, on arrays {shape, data} in row-major order; every step is kept.

function size(shape) {
  return shape.reduce((product, one) => product * one, 1);
}

function filled(shape, next) {
  return { shape, data: Array.from({ length: size(shape) }, next) };
}

function reshape(X, ...shape) {
  return { shape, data: X.data };
}

/** (A, B, C, D) -> (A, C, B, D). */
function swapMiddle(X) {
  const [A, B, C, D] = X.shape;
  const data = [];
  for (let a = 0; a < A; a++)
    for (let c = 0; c < C; c++)
      for (let b = 0; b < B; b++)
        for (let d = 0; d < D; d++) data.push(X.data[((a * B + b) * C + c) * D + d]);
  return { shape: [A, C, B, D], data };
}

/** Products of matrices, one for each leading index: (N, I, J) and (N or 1, J, L) -> (N, I, L). */
function matmul(X, Y) {
  const [N, I, J] = X.shape;
  const L = Y.shape[2];
  const data = [];
  for (let n = 0; n < N; n++)
    for (let i = 0; i < I; i++)
      for (let l = 0; l < L; l++) {
        let sum = 0;
        const m = Y.shape[0] === 1 ? 0 : n;
        for (let j = 0; j < J; j++) sum += X.data[(n * I + i) * J + j] * Y.data[(m * J + j) * L + l];
        data.push(sum);
      }
  return { shape: [N, I, L], data };
}

/** (N, I, J) -> (N, J, I). */
function transpose(X) {
  const [N, I, J] = X.shape;
  const swapped = swapMiddle(reshape(X, N, I, J, 1));
  return reshape(swapped, N, J, I);
}

/** The keys that each query sees, booleans (B, 1, Q, K): those within the lengths, none after the query if causal, and of
 * those before it as many as the window has, itself among them. */
function visibleKeys(B, Q, K, lengths, causal, window = Infinity) {
  let at = 0;
  return filled([B, 1, Q, K], () => {
    const key = at % K;
    const query = Math.floor(at / K) % Q;
    const sample = Math.floor(at / (K * Q));
    at += 1;
    return key < lengths[sample] && (!causal || key <= query) && query - key < window;
  });
}

/** Which position is in each of S slots after so many tokens, token n in slot n % S; -1 = none. */
function positionsIn(S, tokens) {
  return Array.from({ length: S }, (_, slot) => (slot < tokens ? tokens - 1 - ((tokens - 1 - slot) % S) : -1));
}

/** True for queries that see a key (B, Q), or for keys that a query sees (B, K), from visible (B, 1, Q, K). */
function used(visible, axis) {
  const [B, , Q, K] = visible.shape;
  const found = Array.from({ length: B }, () => Array(axis === "queries" ? Q : K).fill(false));
  visible.data.forEach((seen, at) => {
    const place = axis === "queries" ? Math.floor(at / K) % Q : at % K;
    if (seen) found[Math.floor(at / (K * Q))][place] = true;
  });
  return found;
}

/** Heads (B*H, T, d) with zeros for queries or keys that are not used (B, T), so that padding changes no number. */
function blank(X, isUsed) {
  const [BH, T, d] = X.shape;
  const H = BH / isUsed.length;
  const data = X.data.map((one, at) => (isUsed[Math.floor(at / (T * d * H))][Math.floor(at / d) % T] ? one : 0));
  return { shape: X.shape, data };
}

/** Softmax of scores (B*H, Q, K) over the visible keys (B, 1, Q, K): a row without keys is zeros. */
function visibleSoftmax(scores, visible) {
  const [BH, Q, K] = scores.shape;
  const H = BH / visible.shape[0];
  const data = [];
  for (let n = 0; n < BH; n++)
    for (let q = 0; q < Q; q++) {
      const seen = (k) => visible.data[(Math.floor(n / H) * Q + q) * K + k];
      const row = scores.data.slice((n * Q + q) * K, (n * Q + q + 1) * K);
      const largest = Math.max(...row.filter((_, k) => seen(k)));
      const powers = row.map((score, k) => (seen(k) ? Math.exp(score - largest) : 0));
      const sum = powers.reduce((total, one) => total + one, 0);
      data.push(...powers.map((one) => (sum ? one / sum : 0)));
    }
  return { shape: scores.shape, data };
}

/** Split the heads, every stage: (B, T, D) -> (B, T, H, d) -> (B, H, T, d) -> (B*H, T, d). */
function splitStages(X, H) {
  const [B, T, D] = X.shape;
  const apart = reshape(X, B, T, H, D / H);
  const permuted = swapMiddle(apart);
  return [apart, permuted, reshape(permuted, B * H, T, D / H)];
}

/** Merge the heads, every stage: (B*H, Q, d) -> (B, H, Q, d) -> (B, Q, H, d) -> (B, Q, D). */
function mergeStages(X, H) {
  const [BH, Q, d] = X.shape;
  const apart = reshape(X, BH / H, H, Q, d);
  const permuted = swapMiddle(apart);
  return [apart, permuted, reshape(permuted, BH / H, Q, H * d)];
}

/** Inputs and kernels (in, out) of these sizes, from a seed. */
function drawInputs({ B, Q, K, D, seed }) {
  const uniform = uniformFrom(seed);
  const drawn = { queries: normal([B, Q, D], uniform), keys: normal([B, K, D], uniform), values: normal([B, K, D], uniform) };
  for (const name of ["W_q", "W_k", "W_v", "W_o"]) drawn[name] = normal([1, D, D], uniform, 1.5 / Math.sqrt(D));
  return drawn;
}

/** Every step from inputs to output, by name and in order. */
function computeSteps(drawn, { B, Q, K, D, H, lengths, causal }) {
  const W_q = matmul(drawn.queries, drawn.W_q);
  const W_k = matmul(drawn.keys, drawn.W_k);
  const W_v = matmul(drawn.values, drawn.W_v);
  const [reshape_q, permute_q, split_q] = splitStages(W_q, H);
  const split_k = splitStages(W_k, H)[2];
  const split_v = splitStages(W_v, H)[2];
  const visible = visibleKeys(B, Q, K, lengths, causal);
  const [sees, seen] = [used(visible, "queries"), used(visible, "keys")];
  const products = matmul(blank(split_q, sees), transpose(blank(split_k, seen)));
  const scores = { shape: products.shape, data: products.data.map((one) => one / Math.sqrt(D / H)) };
  const weights = visibleSoftmax(scores, visible);
  const pooled = matmul(weights, blank(split_v, seen));
  const [reshape_pooled, permute_pooled, merged] = mergeStages(pooled, H);
  const output = matmul(merged, drawn.W_o);
  return {
    W_q, W_k, W_v, reshape_q, permute_q, split_q, split_k, split_v, visible, scores, weights, pooled,
    reshape_pooled, permute_pooled, merged, output,
  };
}
