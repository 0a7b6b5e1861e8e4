//! The real command, run as people and scripts run it.
//!
//! - `run`: starts it in a folder of its own, with a time limit, and sees that it leaves nothing behind
//! - `general`: help, version, wrong arguments, closed pipes
//! - `config`, `selftest`, `perf`, `demo`: one file a command; `hosts`: all that goes from one host to another
//! - `readme`: what the front page promises

#![forbid(unsafe_code)]

mod config;
mod demo;
mod general;
mod hosts;
mod perf;
mod readme;
mod run;
mod selftest;
