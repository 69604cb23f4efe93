//! What is asked of the Docker engine directly.

use std::pin::pin;

use futures::StreamExt as _;
use testcontainers::bollard::Docker;
use testcontainers::bollard::errors::Error as DockerError;
use testcontainers::bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptionsBuilder, LogsOptionsBuilder, WaitContainerOptions,
};
use testcontainers::core::client::docker_client_instance;

use crate::action::State;
use crate::error::{Error, Result};

/// The local engine.
pub struct Engine {
    docker: Docker,
}

impl Engine {
    /// Finds the engine.
    ///
    /// # Errors
    /// [`Error::NoDocker`] when none answers.
    pub async fn connect() -> Result<Self> {
        let nobody = |why: String| Error::NoDocker {
            why: format!(
                "no Docker engine answers: {why}; start one, or leave out in_containers()"
            ),
        };
        let docker = docker_client_instance().await;
        let docker = docker.map_err(|e| nobody(e.to_string()))?;
        docker.ping().await.map_err(|e| nobody(e.to_string()))?;
        Ok(Self { docker })
    }

    pub fn docker(&self) -> &Docker {
        &self.docker
    }

    /// Makes sure of the image, unless it comes from a registry: then it is pulled when it is used.
    ///
    /// # Errors
    /// [`Error::NoDocker`] when it is not there.
    pub async fn find_image(&self, name: &str, tag: &str) -> Result<()> {
        if name.contains('/')
            || self
                .docker
                .inspect_image(&format!("{name}:{tag}"))
                .await
                .is_ok()
        {
            return Ok(());
        }
        Err(Error::NoDocker {
            why: format!(
                "the Docker engine has no image {name}:{tag}: build it with deploy/image, or name another with \
                 EPOKA_IMAGE or Builder::image"
            ),
        })
    }

    /// What a container is doing.
    ///
    /// # Errors
    /// The engine does not say.
    pub async fn state(&self, container: &str) -> Result<State> {
        let options = None::<InspectContainerOptions>;
        let answer = self.docker.inspect_container(container, options).await;
        let state = answer.map_err(refused("say how a container is"))?.state;
        let state = state.unwrap_or_default();
        Ok(match (state.running, state.paused) {
            (_, Some(true)) => State::Paused,
            (Some(true), _) => State::Running,
            _ => State::Down,
        })
    }

    /// Sends SIGKILL and waits until the container has ended.
    ///
    /// # Errors
    /// The engine refuses.
    pub async fn kill(&self, container: &str) -> Result<()> {
        let options = None::<WaitContainerOptions>;
        let mut end = pin!(self.docker.wait_container(container, options));
        let options = KillContainerOptionsBuilder::default()
            .signal("SIGKILL")
            .build();
        let killed = self.docker.kill_container(container, Some(options)).await;
        killed.map_err(refused("kill a container"))?;
        // A killed container's exit code is no success, which comes as an error.
        match end.next().await {
            None | Some(Ok(_) | Err(DockerError::DockerContainerWaitError { .. })) => Ok(()),
            Some(Err(error)) => Err(refused("wait for a killed container")(error)),
        }
    }

    /// Everything a container has said.
    pub async fn output(&self, container: &str) -> String {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true);
        let mut lines = pin!(self.docker.logs(container, Some(options.build())));
        let mut said = String::new();
        while let Some(Ok(line)) = lines.next().await {
            said += &line.to_string();
        }
        said
    }
}

fn refused(what: &'static str) -> impl FnOnce(DockerError) -> Error {
    move |error| Error::Docker {
        what: what.to_owned(),
        why: error.to_string(),
    }
}
