//! Workloads, floors and the scoreboard.
