"""Torch functions by name, grouped by what their ordinary gradient promises."""

from __future__ import annotations

# What moves entries without changing them. In the second group only the first argument counts: the other gives a shape
# or a type.
MOVES = frozenset(
    "view reshape permute transpose movedim moveaxis swapaxes swapdims flatten unflatten squeeze T mT t unsqueeze "
    "expand repeat tile repeat_interleave roll flip fliplr flipud rot90 unbind chunk split narrow select index_select "
    "__getitem__ gather take_along_dim cat concat concatenate stack hstack vstack contiguous clone".split()
)
BY_FIRST = frozenset("view_as reshape_as expand_as type_as to".split())

# Linear, piecewise linear, or homogeneous of degree 1: input times gradient is the output, less what constants add.
# The moves above belong here too.
HOMOGENEOUS = (
    MOVES
    | BY_FIRST
    | frozenset(
        "real imag view_as_real view_as_complex unsafe_chunk unsafe_split tensor_split dsplit hsplit vsplit dstack "
        "column_stack unfold fold as_strided diagonal diag diag_embed tril triu pixel_shuffle pixel_unshuffle "
        "channel_shuffle scatter scatter_add index_add index_copy index_put masked_fill masked_scatter masked_select "
        "where meshgrid broadcast_to broadcast_tensors ravel H adjoint float half double bfloat16 type cpu cuda data "
        "detach detach_ requires_grad requires_grad_ copy __setitem__ fill zero pad circular_pad nan_to_num".split()
    )
    | frozenset("add __add__ __radd__ sub subtract __sub__ __rsub__ rsub neg negative __neg__ positive".split())
    | frozenset("sum mean nanmean nansum cumsum dropout dropout1d dropout2d dropout3d alpha_dropout diff".split())
    | frozenset("feature_dropout feature_alpha_dropout trace".split())
    | frozenset("relu leaky_relu rrelu hardshrink abs absolute __abs__".split())
    | frozenset("max min amax amin maximum minimum fmax fmin median sort topk kthvalue msort".split())
    | frozenset("frobenius_norm std".split())
    | frozenset(
        f"{kind}{size}d"
        for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
        for size in "123"
    )
    | frozenset("boolean_dispatch max_pool1d_with_indices max_pool2d_with_indices lp_pool1d lp_pool2d".split())
    | frozenset("interpolate upsample upsample_bilinear upsample_nearest embedding".split())
    | frozenset(f"fft_{way}{kind}" for way in ("", "i", "r", "ir") for kind in ("fft", "fft2", "fftn"))
)

# Neither: their ordinary gradient is accepted where a set says that it keeps activations as they are.
ACTIVATIONS = frozenset(
    "gelu silu mish hardswish glu relu6 hardtanh clamp clip clamp_min clamp_max elu selu celu tanh softsign tanhshrink "
    "sigmoid hardsigmoid softplus logsigmoid log_sigmoid exp log sqrt square pow __pow__ erf".split()
)
