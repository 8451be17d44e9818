// The worker of the page: it judges files, so that a hostile one can't hold the page up.
import { load } from "../../../sdk/js/verify/index.js";

let verifier = null;

self.onmessage = async ({ data: { id, call, file, options, module } }) => {
  try {
    verifier ??= await load(module);
    self.postMessage({ id, result: call === "evidence" ? verifier.evidence(file, options) : verifier.verify(file, options) });
  } catch (error) {
    self.postMessage({ id, misuse: error instanceof TypeError || error instanceof RangeError, error: error.message });
  }
};
