"""Intervals that contain the full posterior's variances, without its (N·C) × (N·C) matrix; all in the prior's metric.

With A′ = A V^(−½), g′ = V^(−½) g, k* = A′g′ and K = A′A′ᵀ, the variance is σ² = ‖g′‖² − k*ᵀ(I + K)⁻¹k*. For any z,

    u = ‖g′‖² − 2k*ᵀz + zᵀ(I + K)z = ‖g′ − A′ᵀz‖² + ‖z‖² and r = k* − (I + K)z give u − σ² = rᵀ(I + K)⁻¹r ≥ 0;
    I + K ⪰ P implies (I + K)⁻¹ ⪯ P⁻¹, so u − rᵀP⁻¹r ≤ σ² ≤ u, with P = I if nothing better is known.

u is computed in its second form, which never cancels. z comes from conjugate gradients, but nothing depends on how good
they are: u and r are computed from z and the rows themselves.
"""
