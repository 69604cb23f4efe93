//! Nothing is left behind: containers and networks are removed when their cluster is dropped, when a signal ends the test, and
//! where the test itself was killed, by the next one that starts a cluster.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

use futures::future::join_all;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use testcontainers::bollard::Docker;
use testcontainers::bollard::query_parameters::{
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
};
use testcontainers::core::client::docker_client_instance;
use testcontainers::{ContainerAsync, GenericImage};

/// The label that says whose a container is.
pub const OWNER: &str = "epoka.testing.owner";
/// The label that names its network.
pub const NETWORK: &str = "epoka.testing.network";

/// The containers of this process by their networks.
static OWN: LazyLock<Mutex<BTreeMap<String, Vec<String>>>> = LazyLock::new(|| {
    listen();
    Mutex::default()
});

/// Notes that these containers of a network are about to exist.
pub fn register(network: &str, containers: Vec<String>) {
    let mut own = OWN.lock().expect("nothing panics under it");
    own.insert(network.to_owned(), containers);
}

/// Removes a network and its containers, those that are `held` and any others. Blocks.
pub fn remove(network: &str, held: Vec<ContainerAsync<GenericImage>>) {
    let containers = {
        let own = OWN.lock().expect("nothing panics under it");
        own.get(network).cloned().unwrap_or_default()
    };
    block_on(async {
        // Whoever holds one would remove it anew.
        join_all(held.into_iter().map(ContainerAsync::rm)).await;
        if let Ok(docker) = docker_client_instance().await {
            remove_all(&docker, network, &containers).await;
        }
    });
    OWN.lock().expect("nothing panics under it").remove(network);
}

/// Runs something to its end on a thread and a runtime of its own: whoever drops a cluster may be inside a runtime, or in none.
fn block_on(work: impl Future<Output = ()> + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(work),
                Err(error) => eprintln!("containers are left behind: {error}"),
            }
        });
    });
}

async fn remove_all(docker: &Docker, network: &str, containers: &[String]) {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true);
    let options = options.build();
    // One that was never made, or is gone, needs no removal.
    join_all(
        containers
            .iter()
            .map(|name| docker.remove_container(name, Some(options.clone()))),
    )
    .await;
    let _ = docker.remove_network(network).await;
}

/// Removes everything before a signal ends this process.
fn listen() {
    let signals = Signals::new([SIGINT, SIGTERM, SIGQUIT]);
    let Ok(mut signals) = signals else { return };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let networks: Vec<_> = match OWN.lock() {
                Ok(own) => own.keys().cloned().collect(),
                Err(_) => Vec::new(),
            };
            for network in networks {
                remove(&network, Vec::new());
            }
            // As if nobody had listened.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}

/// This process, told apart from any other one on this machine: its host name, its process namespace, its id and the time it
/// started. `None` where the system does not say.
pub fn owner() -> Option<String> {
    let pid = std::process::id();
    Some(format!("{}/{pid}/{}", machine()?, started(pid)?))
}

/// Removes the containers of processes of this machine that are gone.
pub async fn sweep(docker: &Docker) {
    let Some(machine) = machine() else { return };
    let filters = HashMap::from([("label".to_owned(), vec![OWNER.to_owned()])]);
    let options = ListContainersOptionsBuilder::default().all(true);
    let options = options.filters(&filters).build();
    let Ok(found) = docker.list_containers(Some(options)).await else {
        return;
    };
    let mut orphans: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for container in found {
        let labels = container.labels.unwrap_or_default();
        if labels
            .get(OWNER)
            .is_some_and(|owner| is_gone(owner, &machine))
            && let (Some(network), Some(id)) = (labels.get(NETWORK), container.id)
        {
            orphans.entry(network.clone()).or_default().push(id);
        }
    }
    for (network, containers) in orphans {
        remove_all(docker, &network, &containers).await;
    }
}

/// Whether the process that this label names was of this machine and is no more.
fn is_gone(owner: &str, machine: &str) -> bool {
    let Some(process) = owner
        .strip_prefix(machine)
        .and_then(|o| o.strip_prefix('/'))
    else {
        return false;
    };
    let Some((pid, since)) = process.split_once('/') else {
        return false;
    };
    pid.parse()
        .is_ok_and(|pid| started(pid).as_deref() != Some(since))
}

/// The host name and the process namespace: within them a process id means one process at a time.
fn machine() -> Option<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", host.trim(), namespace.display()))
}

/// When a process started, in ticks since the machine did (field 22 of proc(5)'s stat).
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, with whatever it contains.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_gone_when_its_id_is_free_or_another_ones() {
        let machine = machine().expect("Linux");
        let own = owner().expect("Linux");
        assert!(!is_gone(&own, &machine), "{own}");
        let (same_id, _) = own.rsplit_once('/').expect("three parts");
        assert!(is_gone(&format!("{same_id}/1"), &machine));
        assert!(is_gone(&format!("{machine}/4194305/1"), &machine));
        // What is not of this machine is nothing to judge.
        assert!(!is_gone("elsewhere/pid:[1]/4194305/1", &machine));
        assert!(!is_gone(&format!("{machine}/x"), &machine));
    }
}
