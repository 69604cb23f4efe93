//! The listeners of a broker: each has a name, a place where it binds, and an address that those who come through it are told.
//! Clients in a container network and clients of the host reach one broker at different addresses; each kind has a listener.

use std::net::SocketAddr;

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name, such as `PLAINTEXT`.
    pub name: String,
    /// Where it binds.
    pub listen: SocketAddr,
    /// `host`, `port` that its clients are told; `None`: where it is bound.
    pub advertised: Option<(String, u16)>,
}

impl Listener {
    /// As `advertised.listeners` says it, if it does.
    pub fn advertised_text(&self) -> Option<String> {
        let (host, port) = self.advertised.as_ref()?;
        Some(format!("{}://{host}:{port}", self.name))
    }
}

/// Names that promise what there is none of.
const SECURE: [&str; 3] = ["SSL", "SASL_PLAINTEXT", "SASL_SSL"];

/// Reads `listeners` and `advertised.listeners`.
///
/// # Errors
/// A sentence that names the property, what is wrong with it, and what to write.
pub fn read(listeners: &str, advertised: &str) -> Result<Vec<Listener>, String> {
    let mut read = Vec::<Listener>::new();
    for text in entries(listeners) {
        let (name, address) = split(text);
        if SECURE.contains(&name) {
            return Err(format!(
                "listeners has `{text}`, but {name} is not there yet: choose another name, such as PLAINTEXT"
            ));
        }
        if read.iter().any(|l| l.name == name) {
            return Err(format!(
                "listeners names {name} twice; each listener needs a name of its own"
            ));
        }
        read.push(Listener {
            name: name.to_owned(),
            listen: socket_address(address).ok_or_else(|| {
                format!("listeners has `{text}`, which is not NAME://ADDRESS:PORT")
            })?,
            advertised: None,
        });
    }
    if read.is_empty() {
        return Err("listeners names no address: write PLAINTEXT://ADDRESS:PORT".into());
    }
    for text in entries(advertised) {
        let (name, address) = split(text);
        let known: Vec<_> = read.iter().map(|l| l.name.clone()).collect();
        let Some(listener) = read.iter_mut().find(|l| l.name == name) else {
            return Err(format!(
                "advertised.listeners has `{text}`, but listeners has no {name}, only {}",
                known.join(", ")
            ));
        };
        if listener.advertised.is_some() {
            return Err(format!("advertised.listeners names {name} twice"));
        }
        listener.advertised = Some(advertised_address(text, address)?);
    }
    for listener in &read {
        if listener.advertised.is_none() && listener.listen.ip().is_unspecified() {
            return Err(format!(
                "listener {} binds every address ({}), so its clients must be told one that they can reach: \
                 set advertised.listeners={}://HOST:{}",
                listener.name,
                listener.listen,
                listener.name,
                listener.listen.port()
            ));
        }
    }
    let told: Vec<_> = read.iter().filter_map(|l| l.advertised.as_ref()).collect();
    if let Some((host, port)) =
        (1..told.len()).find_map(|i| told[..i].contains(&told[i]).then_some(told[i]))
    {
        return Err(format!(
            "advertised.listeners has {host}:{port} twice; each listener is reached at an address of its own"
        ));
    }
    Ok(read)
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|t| !t.is_empty())
}

/// The name, and what follows it; without one it is PLAINTEXT.
fn split(text: &str) -> (&str, &str) {
    text.split_once("://").unwrap_or(("PLAINTEXT", text))
}

/// `127.0.0.1:9092`, `localhost:9092`, or `:9092` for every address.
fn socket_address(address: &str) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs as _;
    if let Some(port) = address.strip_prefix(':') {
        return Some(SocketAddr::from(([0, 0, 0, 0], port.parse().ok()?)));
    }
    let parsed = address.parse().ok();
    parsed.or_else(|| address.to_socket_addrs().ok()?.next())
}

fn advertised_address(text: &str, address: &str) -> Result<(String, u16), String> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| {
        format!("advertised.listeners has `{text}`, which is not NAME://HOST:PORT")
    })?;
    if let "" | "0.0.0.0" | "[::]" | "::" = host {
        return Err(format!(
            "advertised.listeners has `{text}`, which no client can reach: write a host name or address before :{port} \
             that the clients of this listener can reach"
        ));
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_have_names_and_tell_their_clients_where_to_come() {
        let read = read(
            "CONTAINERS://0.0.0.0:19092, HOST://:9092",
            "HOST://127.0.0.1:9093,CONTAINERS://broker-1:19092",
        )
        .expect("complete");
        let told: Vec<_> = read.iter().filter_map(Listener::advertised_text).collect();
        assert_eq!(
            told,
            ["CONTAINERS://broker-1:19092", "HOST://127.0.0.1:9093"]
        );
        assert_eq!(read[1].listen, SocketAddr::from(([0, 0, 0, 0], 9092)));
        let plain = super::read("127.0.0.1:9092", "").expect("complete");
        assert_eq!(
            (plain[0].name.as_str(), &plain[0].advertised),
            ("PLAINTEXT", &None)
        );
    }

    #[test]
    fn what_no_client_could_use_is_refused_with_what_to_write() {
        let both = "A://0.0.0.0:1,B://0.0.0.0:2";
        for (listeners, advertised, says) in [
            ("", "", "write PLAINTEXT://ADDRESS:PORT"),
            ("nowhere", "", "not NAME://ADDRESS:PORT"),
            ("SSL://127.0.0.1:1", "", "SSL is not there yet"),
            ("A://127.0.0.1:1,A://127.0.0.1:2", "", "names A twice"),
            (both, "", "set advertised.listeners=A://HOST:1"),
            (both, "A://here:1", "set advertised.listeners=B://HOST:2"),
            (both, "A://here:1,B://", "not NAME://HOST:PORT"),
            (both, "A://here:1,B://:2", "no client can reach"),
            (both, "A://here:1,B://0.0.0.0:2", "no client can reach"),
            (both, "A://here:1,B://here:0", "not NAME://HOST:PORT"),
            (both, "A://here:1,B://here:1", "here:1 twice"),
            (both, "A://here:1,A://there:1", "names A twice"),
            (
                both,
                "A://here:1,C://there:1",
                "listeners has no C, only A, B",
            ),
        ] {
            let error = read(listeners, advertised).expect_err(advertised);
            assert!(error.contains(says), "{error}");
        }
    }
}
