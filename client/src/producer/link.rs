//! A lane's connection to the leader of its partition: one gRPC exchange, answers in the order of the requests.

use epoka_proto::v1::{ProduceRequest, ProduceResponse};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use crate::connections::Connections;
use crate::error::{Result, status_reason};
use crate::metadata::Leader;

/// An open exchange. Dropping it cancels what is under way.
pub(super) struct Link {
    pub leader: Leader,
    requests: mpsc::Sender<ProduceRequest>,
    answers: mpsc::Receiver<Result<ProduceResponse, String>>,
    task: JoinHandle<()>,
}

impl Link {
    /// Opens an exchange with room for `in_flight` unanswered requests. A failure to connect shows in [`Self::answer`].
    pub fn open(connections: &Connections, leader: Leader, in_flight: usize) -> Result<Self> {
        let mut log = connections.log(&leader)?;
        let (requests, outgoing) = mpsc::channel(in_flight);
        let (incoming, answers) = mpsc::channel(in_flight);
        let task = tokio::spawn(async move {
            let mut responses = match log.produce(ReceiverStream::new(outgoing)).await {
                Ok(responses) => responses.into_inner(),
                Err(status) => {
                    let _ = incoming.send(Err(status_reason(&status))).await;
                    return;
                }
            };
            loop {
                let answer = match responses.message().await {
                    Ok(Some(answer)) => Ok(answer),
                    Ok(None) => Err("the broker ended the exchange".to_owned()),
                    Err(status) => Err(status_reason(&status)),
                };
                let ended = answer.is_err();
                if incoming.send(answer).await.is_err() || ended {
                    return;
                }
            }
        });
        Ok(Self {
            leader,
            requests,
            answers,
            task,
        })
    }

    /// Sends a request. The caller keeps no more than `in_flight` unanswered; a broken exchange shows in [`Self::answer`].
    pub fn send(&self, request: ProduceRequest) {
        let _ = self.requests.try_send(request);
    }

    /// The next answer, or why there will be none. Cancel-safe.
    pub async fn answer(&mut self) -> Result<ProduceResponse, String> {
        let answer = self.answers.recv().await;
        answer.unwrap_or_else(|| Err("the connection is closed".to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}
