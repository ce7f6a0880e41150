"""Pure numerics: torch only. No paths, no YAML, no printing, no choice of device.

One letter has one meaning in all these files, as in the paper:

    N, M    training rows, test rows      C   outputs of the network
    p       trainable parameters          k   parameters in the sub-network S
    D       targets of a row: C, or C/2 if a network predicts means and log-variances s
    f       outputs (N, C)                J   Jacobian of f (N, C, p), rows flattened as N·C
    H       output Hessian (N, C, C)      W   a square root of it: H = W Wᵀ
    A       weighted Jacobian, rows Wₙᵀ Jₙ; then Ω = AᵀA + V
    U       s combinations of many outputs (N, C, s): E[U Uᵀ] = H; the rows Uₙᵀ Jₙ have s outputs and H = I
    v       diagonal of V, the prior precision of each parameter (p,)
    sigma2  noise variance σ₀² (1 for classification)
    K       Gram matrix A V⁻¹ Aᵀ (N·C, N·C); R = (I + K)⁻¹
    B, L    a symmetric matrix and its lower Cholesky factor
    T, T2   positions (tokens) per row    m   some rows of either kind

Einsum letters: n rows, c and d outputs, p parameters, k selected. Passes run in the network's dtype; every sum,
product, factorisation and solve here is float64.
"""
