"""One file per command, with its steps in order.

    jacobians   rows → scores
    select      rows → Ω → select
    fit         rows → Ω → select → fit
    evaluate    rows → Ω → select → fit → predict → score
    predict     a stored posterior → predict → score (`evaluate --posterior`)

`runner` opens the run, retries with less memory, runs a sweep and judges; `plan` is `--dry-run`.
"""
