//! `epoka watch`: the timeline as it happens, and on a terminal the state of the partitions above it.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use epoka_client::Client;
use epoka_client::timeline::{Line, Teller, next_events};
use epoka_proto::ids::TopicPartition;
use tokio::time::{MissedTickBehavior, interval};

use super::follow::follow;
use super::view::View;
use crate::cluster::ClusterArgs;
use crate::failure::Outcome;
use crate::node::StopSignal;

/// How often the state is asked for on a terminal.
const REFRESH: Duration = Duration::from_millis(500);
/// Lines of the timeline kept on a terminal.
const KEPT: usize = 200;

/// Watch what happens, in plain words, as it happens.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka watch
  epoka watch orders-0
  epoka watch --json | jq 'select(.unavailable_ms)'")]
pub struct WatchArgs {
    /// Only this partition, such as orders-0.
    #[arg(value_parser = partition)]
    pub partition: Option<TopicPartition>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Leave out what happened before now.
    #[arg(long)]
    pub from_now: bool,
}

/// Reads a partition's name.
///
/// # Errors
/// A sentence with an example.
pub fn partition(text: &str) -> Result<TopicPartition, String> {
    TopicPartition::parse(text)
        .ok_or_else(|| format!("`{text}` does not name a partition such as orders-0"))
}

/// Runs the command until it is interrupted.
///
/// # Errors
/// There is no cluster to watch.
pub async fn run(args: WatchArgs) -> Outcome {
    let mut stop = StopSignal::new()?;
    let mut collector = follow(&args.cluster).await?;
    // A local cluster is looked at through its supervisor, any other one through a client that keeps its connections.
    let remote = match args.cluster.bootstrap.is_empty() {
        true => None,
        false => Some(args.cluster.client().await?),
    };
    if let Some(partition) = &args.partition {
        let local = match &remote {
            Some(_) => None,
            None => args.cluster.client().await.ok(),
        };
        // With every broker down it cannot be told.
        if let Some(client) = remote.as_ref().or(local.as_ref()) {
            client.metadata().partition(partition)?;
        }
    }
    let mut teller = Teller::only(args.partition.clone());
    let screen = std::io::stdout().is_terminal() && !args.json;
    let mut told: VecDeque<Line> = VecDeque::new();
    let started_ms = now_ms();
    let mut refresh = interval(REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let lines = tokio::select! {
            () = stop.received() => return Ok(()),
            _ = refresh.tick(), if screen => Vec::new(),
            events = next_events(&mut collector) => {
                let Some(events) = events else {
                    // Nobody is there to be followed; the brokers may know why.
                    if let Some(client) = &remote {
                        client.refresh().await?;
                    }
                    return Ok(());
                };
                let mut lines = teller.tell(&events);
                lines.retain(|line| !args.from_now || line.unix_ms >= started_ms);
                lines
            }
        };
        if screen {
            told.extend(lines);
            while told.len() > KEPT {
                told.pop_front();
            }
            draw(&args, remote.as_ref(), &told).await?;
        } else if !print(&lines, args.json) {
            return Ok(());
        }
    }
}

/// `false` when nobody reads any more.
fn print(lines: &[Line], json: bool) -> bool {
    let mut out = std::io::stdout().lock();
    let written = lines.iter().try_for_each(|line| {
        if json {
            let line = serde_json::to_string(line).expect("plain data");
            writeln!(out, "{line}")
        } else {
            writeln!(out, "{line}")
        }
    });
    written.and_then(|()| out.flush()).is_ok()
}

async fn draw(args: &WatchArgs, remote: Option<&Client>, told: &VecDeque<Line>) -> Outcome {
    let view = match remote {
        Some(client) => View::of(client).await,
        None => View::take(&args.cluster).await,
    };
    let state = match view {
        Ok(view) => view.text(args.partition.as_ref()),
        Err(failure) => format!("{failure}\n"),
    };
    let (rows, columns) = terminal_size();
    let room = rows.saturating_sub(state.lines().count() + 2);
    let first = told.len().saturating_sub(room);
    let mut screen = String::from("\x1b[H");
    for line in state.lines().chain([""]) {
        push_line(&mut screen, line, columns);
    }
    for line in told.iter().skip(first) {
        push_line(&mut screen, &line.to_string(), columns);
    }
    screen += "\x1b[J";
    let mut out = std::io::stdout().lock();
    out.write_all(screen.as_bytes())?;
    Ok(out.flush()?)
}

fn push_line(screen: &mut String, line: &str, columns: usize) {
    screen.extend(line.chars().take(columns));
    screen.push_str("\x1b[K\r\n");
}

/// Rows and columns.
fn terminal_size() -> (usize, usize) {
    let size = terminal_size::terminal_size();
    size.map_or((40, 160), |(columns, rows)| {
        (rows.0.into(), columns.0.into())
    })
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
