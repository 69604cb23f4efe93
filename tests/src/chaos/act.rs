//! Does to a cluster what a step says, and undoes it.

use epoka_proto::ids::BrokerId;
use tokio::time::sleep;

use super::plan::{BROKERS, Broker, Fault, Lasting, Settle, Step, Ways};
use super::run::TOPIC;
use crate::harness::cluster::PATIENCE;
use crate::harness::wait::poll;
use crate::harness::{self, Cluster, Load, Node};

/// Acknowledgements that count as progress.
const SOME: usize = 50;

/// Performs a step to its end: afterwards every node runs, every link is whole, and what the step wants to await has come.
///
/// `whole`: every replica was in the ISR when the step began. Only then must the majority that is left make progress:
/// otherwise the broker that is affected may be the last that knows what was committed.
///
/// # Panics
/// When something that must come does not within [`PATIENCE`].
pub async fn perform(cluster: &mut Cluster, load: &Load, step: &Step, whole: bool) {
    let controller = if step.and_controller {
        let active = cluster.active_controller().await;
        cluster.kill(active);
        Some(active)
    } else {
        None
    };
    inflict(cluster, load, step.fault, whole).await;
    if let Some(controller) = controller {
        cluster.start_node(controller);
    }
    match step.settle {
        Settle::Whole => await_full_isr(cluster).await,
        Settle::Progress => load.progress(SOME, PATIENCE).await,
        Settle::Nothing => {}
    }
}

/// Waits until every broker may lead and every replica is in the ISR; writers may be at work.
///
/// # Panics
/// When that does not come within [`PATIENCE`].
pub async fn await_full_isr(cluster: &mut Cluster) {
    cluster.await_all_brokers().await;
    cluster
        .until_metadata("full ISRs", |m| {
            m.partitions().all(|(_, p)| p.is_whole()).then_some(())
        })
        .await;
}

async fn inflict(cluster: &mut Cluster, load: &Load, fault: Fault, whole: bool) {
    match fault {
        Fault::Kill(broker, lasting) => {
            let node = resolve(cluster, broker).await;
            cluster.kill(node);
            last(cluster, load, node, lasting, whole).await;
            cluster.start_node(node);
        }
        Fault::Stop(broker, lasting) => {
            let node = resolve(cluster, broker).await;
            await_answer(cluster, node).await;
            let status = cluster.stop(node).await;
            assert!(status.success(), "{node} ended with {status}");
            last(cluster, load, node, lasting, whole).await;
            cluster.start_node(node);
        }
        Fault::Pause(broker, lasting) => {
            let node = resolve(cluster, broker).await;
            cluster.pause(node);
            last(cluster, load, node, lasting, whole).await;
            cluster.resume(node);
        }
        Fault::Isolate(broker, kind, lasting) => {
            let node = resolve(cluster, broker).await;
            cluster.isolate(node, kind);
            last(cluster, load, node, lasting, whole).await;
            cluster.heal();
        }
        Fault::CutBrokers {
            broker,
            next,
            ways,
            kind,
            lasts,
        } => {
            let node = resolve(cluster, broker).await;
            let other = Node::Broker((node.id() - 1 + next) % BROKERS + 1);
            cut(cluster, node, other, ways, kind);
            sleep(lasts).await;
            cluster.heal();
        }
        Fault::CutFromControllers {
            broker,
            ways,
            kind,
            lasts,
        } => {
            let node = resolve(cluster, broker).await;
            for other in cluster.nodes() {
                if matches!(other, Node::Controller(_)) {
                    cut(cluster, node, other, ways, kind);
                }
            }
            sleep(lasts).await;
            cluster.heal();
        }
        Fault::KillController(lasts) => {
            let active = cluster.active_controller().await;
            cluster.kill(active);
            sleep(lasts).await;
            cluster.start_node(active);
        }
        Fault::PauseController(lasts) => {
            let active = cluster.active_controller().await;
            cluster.pause(active);
            sleep(lasts).await;
            cluster.resume(active);
        }
        Fault::KillAll => {
            cluster.kill_all();
            cluster.start_all();
        }
    }
}

async fn resolve(cluster: &mut Cluster, broker: Broker) -> Node {
    match broker {
        Broker::Id(id) => Node::Broker(id),
        Broker::LeaderOf(partition) => cluster.leader_of(TOPIC, partition).await,
    }
}

/// A process that has just been started does not yet know how to stop cleanly.
async fn await_answer(cluster: &mut Cluster, node: Node) {
    let answers = poll(PATIENCE, async || {
        let state = cluster.replica_state(node, TOPIC, 0).await;
        state.ok_or("no answer, or no replica yet")
    });
    if let Err(seen) = answers.await {
        panic!("waited {PATIENCE:?} for {node} to answer: {seen}");
    }
}

/// A fault takes its time: the time drawn for it, or until it was noticed and the others have gone on without the broker.
async fn last(cluster: &mut Cluster, load: &Load, node: Node, lasting: Lasting, whole: bool) {
    match lasting {
        Lasting::For(time) => sleep(time).await,
        Lasting::UntilFenced => {
            let id = BrokerId(node.id());
            cluster
                .until_metadata(&format!("{node} to be fenced"), |m| {
                    m.brokers.get(&id)?.fenced.then_some(())
                })
                .await;
            if whole {
                load.progress(SOME, PATIENCE).await;
            }
        }
    }
}

fn cut(cluster: &Cluster, node: Node, other: Node, ways: Ways, kind: harness::Fault) {
    if ways != Ways::Back {
        cluster.set_fault(node, other, Some(kind));
    }
    if ways != Ways::There {
        cluster.set_fault(other, node, Some(kind));
    }
}
