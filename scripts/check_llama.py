"""Tries the installed llama.cpp on the bundled models: a miscompiled one dies by a signal."""

from __future__ import annotations

import ctypes
import math
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "models"
TOKEN_COUNT = 32  # the kernels that break are the ones for several rows


def try_decode(path: Path) -> None:
    """Decode a few tokens with the model at `path`; RuntimeError says what did not work."""
    import llama_cpp as ll

    model = ll.llama_model_load_from_file(str(path).encode(), ll.llama_model_default_params())
    if not model:
        raise RuntimeError(f"cannot load {path.name}")
    parameters = ll.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 2 * TOKEN_COUNT
    context = ll.llama_init_from_model(model, parameters)
    if not context:
        raise RuntimeError(f"cannot make a context for {path.name}")
    tokens = (ll.llama_token * TOKEN_COUNT)(*range(TOKEN_COUNT))
    if status := ll.llama_decode(context, ll.llama_batch_get_one(tokens, TOKEN_COUNT)):
        raise RuntimeError(f"llama_decode returned {status} for {path.name}")
    if not math.isfinite(ll.llama_get_logits_ith(context, TOKEN_COUNT - 1)[0]):
        raise RuntimeError(f"{path.name} gives logits that are not numbers")
    ll.llama_free(context)
    ll.llama_model_free(model)


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or sorted(MODELS.glob("*.gguf"))
    if not paths:
        sys.exit(f"check_llama: there is no model in {MODELS.name}/ to try")
    try:
        import llama_cpp as ll

        silent = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(silent, ctypes.c_void_p(0))
        for path in paths:
            try_decode(path)
    except (ImportError, OSError, RuntimeError) as error:
        sys.exit(f"check_llama: {error}")
    print(f"OK: llama.cpp decodes {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()
