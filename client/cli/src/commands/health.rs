//! `epoka health`: whether a node does its work, for health checks. It reads the same settings as the node itself, so that a check
//! in the node's own container needs no address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};
use epoka_broker::BrokerConfig;
use epoka_client::{Client, ClientConfig, Connections};
use epoka_proto::v1::DescribeQuorumRequest;
use tokio::time::timeout;

use crate::failure::{Failure, Outcome};
use crate::node::{self, NodeArgs};

/// How long the node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Say whether a node does its work: a broker when it is unfenced and takes acks=all writes on every partition it leads, with the
/// declared topics there; a controller when there is an active one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka health broker --config broker.properties
  HEALTHCHECK CMD [\"/epoka\", \"health\", \"broker\"]      in a container, with the broker's own settings

Exit code 0: it does; 1: not yet, or not any more, and why.")]
pub struct HealthArgs {
    /// Which kind of node.
    pub kind: NodeKind,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// A kind of node.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum NodeKind {
    /// It keeps logs and serves clients.
    Broker,
    /// It keeps the metadata.
    Controller,
}

/// Runs the command.
///
/// # Errors
/// The node does not do its work, or does not answer.
pub async fn run(args: HealthArgs) -> Outcome {
    let waiting = match args.kind {
        NodeKind::Broker => broker(node::broker_config(&args.node)?).await?,
        NodeKind::Controller => controller(node::controller_config(&args.node)?.listen).await?,
    };
    if waiting.is_empty() {
        say!("ready");
        return Ok(());
    }
    Err(Failure::wrong(format!("not ready: {}", waiting.join("; "))))
}

async fn broker(config: BrokerConfig) -> Outcome<Vec<String>> {
    let address = reachable("epoka.grpc.listener", config.grpc_listen)?;
    let patience = ClientConfig {
        request_timeout: PATIENCE,
        ..ClientConfig::default()
    };
    let client = Client::new([address.clone()], patience);
    Ok(client.admin().readiness_at(&address).await?.waiting_for)
}

async fn controller(listen: SocketAddr) -> Outcome<Vec<String>> {
    let address = reachable("listeners", listen)?;
    let mut controller = Connections::default().controller(&address)?;
    let answer = timeout(
        PATIENCE,
        controller.describe_quorum(DescribeQuorumRequest {}),
    )
    .await;
    match answer {
        Ok(Ok(quorum)) => Ok(match quorum.into_inner().active_id {
            Some(_) => Vec::new(),
            None => vec!["no controller is active".to_owned()],
        }),
        Ok(Err(status)) => Err(Failure::wrong(format!("{address}: {}", status.message()))),
        Err(_) => Err(Failure::wrong(format!(
            "{address}: no answer in {} ms",
            PATIENCE.as_millis()
        ))),
    }
}

/// Where a node that listens there is reached from its own machine.
fn reachable(property: &str, listen: SocketAddr) -> Outcome<String> {
    if listen.port() == 0 {
        return Err(Failure::usage(format!(
            "{property} picks a free port, so nobody can tell where to ask: give it a port"
        )));
    }
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, listen.port()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_where_it_listens() {
        for (listen, asked) in [
            ("0.0.0.0:19093", Some("127.0.0.1:19093")),
            ("[::]:19093", Some("[::1]:19093")),
            ("10.0.0.7:9093", Some("10.0.0.7:9093")),
            ("127.0.0.1:0", None),
        ] {
            let listen = listen.parse().expect("an address");
            assert_eq!(reachable("listeners", listen).ok().as_deref(), asked);
        }
    }
}
