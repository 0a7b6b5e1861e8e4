//! The real command, run as people and scripts run it.
//!
//! - `run`: starts it in a folder of its own, with a time limit, and sees that it leaves nothing behind
//! - `general`: help, version, wrong arguments, closed pipes
//! - `config`, `selftest`, `perf`, `demo`: one file a command; `hosts`: all that goes from one host to another
//! - `gpu`: what `doctor gpu` says of a driver that stands in for the real one
//! - `readme`: what the front page promises

#![forbid(unsafe_code)]

mod config;
mod demo;
mod general;
mod gpu;
mod hosts;
mod perf;
mod readme;
mod run;
mod selftest;
