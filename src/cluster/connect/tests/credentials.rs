//! What is shown to the server, and that it is read again when the server wants other.

use super::*;

/// `Authorization` that this user shows.
async fn shown(folder: &Folder, user: &Value) -> String {
    let server = TestServer::plain().await;
    ask(&folder.api(&json!({"server": server.url()}), user).unwrap()).await.unwrap();
    server.last().header("authorization").to_owned()
}

#[tokio::test]
async fn a_token_file_may_end_with_a_line_feed() {
    let folder = Folder::new();
    for text in ["t", "t\n", "t\r\n", " t\n\n"] {
        let file = folder.write("token", text);
        assert_eq!(shown(&folder, &json!({"tokenFile": file})).await, "Bearer t", "{text:?}");
    }
}

#[tokio::test]
async fn a_token_file_counts_before_a_token_and_an_empty_token_is_none() {
    let folder = Folder::new();
    let (file, missing) = (folder.write("token", "of-the-file\n"), folder.path("missing"));
    for (user, shows) in [
        (json!({"token": "", "tokenFile": file}), "Bearer of-the-file"),
        (json!({"token": "inline", "tokenFile": file}), "Bearer of-the-file"),
        (json!({"token": "inline", "tokenFile": missing}), "Bearer inline"),
        (json!({"token": "inline", "tokenFile": ""}), "Bearer inline"),
        (json!({"token": "", "username": "me", "password": "p:w"}), "Basic bWU6cDp3"),
        (json!({"token": ""}), ""),
        (json!({}), ""),
        (json!({"auth-provider": {"name": "oidc", "config": {"id-token": "i"}}}), "Bearer i"),
    ] {
        assert_eq!(shown(&folder, &user).await, shows, "{user}");
    }
}

#[tokio::test]
async fn a_token_file_that_is_not_there_is_named_and_not_taken_for_a_missing_server() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    for (text, words) in
        [(None, "No such file"), (Some("\n"), "empty"), (Some("a\nb"), "line break")]
    {
        let file = folder.path("token");
        if let Some(text) = text {
            folder.write("token", text);
        }
        let api = folder.api(&json!({"server": server.url()}), &json!({"tokenFile": file}));
        let error = ask(&api.unwrap()).await.unwrap_err();
        let RequestError::Credentials(error) = error else { panic!("{error:?}") };
        assert!(!error.passes, "{error}");
        let error = error.to_string();
        assert!(error.contains(&file.display().to_string()) && error.contains(words), "{error}");
        assert_eq!(server.seen().len(), 0, "nothing is sent without credentials");
    }
}

#[tokio::test]
async fn who_is_impersonated_is_told_to_the_server() {
    let server = TestServer::plain().await;
    let user = json!({
        "token": "t", "as": "jane", "as-uid": "7", "as-groups": ["g1", "g2"],
        "as-user-extra": {"example.com/team": ["a"]},
    });
    ask(&Folder::new().api(&json!({"server": server.url()}), &user).unwrap()).await.unwrap();
    let seen = server.last();
    assert_eq!(seen.header("impersonate-user"), "jane");
    assert_eq!(seen.header("impersonate-uid"), "7");
    assert_eq!(seen.header("impersonate-group"), "g1,g2");
    assert_eq!(seen.header("impersonate-extra-example.com%2fteam"), "a");
}

#[tokio::test]
async fn api_servers_are_told_who_asks() {
    let server = TestServer::plain().await;
    let cluster = open(Config::new(server.url().parse().unwrap())).unwrap();
    ask(&api(&cluster)).await.unwrap();
    let agent = format!("ostrakon/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(server.last().header("user-agent"), agent);
}

#[tokio::test]
async fn a_token_that_was_replaced_is_read_again_when_the_old_one_is_refused() {
    let server = TestServer::plain().await;
    server.accept_only("Bearer old");
    let folder = Folder::new();
    let file = folder.write("token", "old\n");
    let api = folder.api(&json!({"server": server.url()}), &json!({"tokenFile": file})).unwrap();
    ask(&api).await.unwrap();
    folder.write("token", "new\n");
    server.accept_only("Bearer new");
    ask(&api).await.unwrap();
    assert_eq!(server.authorizations(), ["Bearer old", "Bearer old", "Bearer new"]);
    // Also when the token is in the kubeconfig itself.
    let api = folder.api(&json!({"server": server.url()}), &json!({"token": "new"})).unwrap();
    ask(&api).await.unwrap();
    server.accept_only("Bearer newer");
    folder.kubeconfig(&json!({"server": server.url()}), &json!({"token": "newer"}));
    ask(&api).await.unwrap();
    assert_eq!(server.last().header("authorization"), "Bearer newer");
}

#[tokio::test]
async fn the_files_are_read_again_every_minute_and_a_removed_token_file_still_counts() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    let file = folder.write("token", "old");
    let api = folder.api(&json!({"server": server.url()}), &json!({"tokenFile": file})).unwrap();
    ask(&api).await.unwrap();
    let minute = async || {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
    };
    folder.write("token", "new");
    ask(&api).await.unwrap();
    assert_eq!(server.last().header("authorization"), "Bearer old", "a minute is not over");
    minute().await;
    until(async || {
        ask(&api).await.unwrap();
        server.last().header("authorization") == "Bearer new"
    })
    .await;
    std::fs::remove_file(&file).unwrap();
    minute().await;
    for _ in 0..5 {
        ask(&api).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.last().header("authorization"), "Bearer new");
}

/// Until this is so.
async fn until(so: impl AsyncFn() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
}

#[tokio::test]
async fn a_kubeconfig_that_names_another_server_meanwhile_is_not_followed() {
    let (server, other) = (TestServer::plain().await, TestServer::plain().await);
    server.accept_only("Bearer old");
    let folder = Folder::new();
    let api = folder.api(&json!({"server": server.url()}), &json!({"token": "old"})).unwrap();
    ask(&api).await.unwrap();
    server.accept_only("Bearer new");
    folder.kubeconfig(&json!({"server": other.url()}), &json!({"token": "new"}));
    let error = ask(&api).await.unwrap_err();
    assert!(matches!(&error, RequestError::Status(answer) if answer.code == 401), "{error:?}");
    assert_eq!(other.seen().len(), 0);
}

#[tokio::test]
async fn an_authority_that_was_replaced_is_read_again_when_the_server_changes() {
    let server = TestServer::tls("old-server").await;
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({"server": server.url(), "certificate-authority": authority});
    let api = folder.api(&cluster, &json!({"token": "t"})).unwrap();
    ask(&api).await.unwrap();
    folder.write("ca.pem", [pem("old-authority"), pem("new-authority")].concat());
    server.certify(Certified { by: "new-server", clients_of: None });
    // An open connection is as good as before, so a new one must be made.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(25)).await;
    tokio::time::resume();
    let (one, two) = tokio::join!(ask(&api), ask(&api));
    assert_eq!((one, two), (Ok(()), Ok(())));
    let fresh = folder.api(&cluster, &json!({"token": "t"})).unwrap();
    ask(&fresh).await.unwrap();
    folder.write("ca.pem", pem("old-authority"));
    let error = ask(&folder.api(&cluster, &json!({"token": "t"})).unwrap()).await.unwrap_err();
    assert!(matches!(error, RequestError::WrongPeer(_)), "not trusted any more: {error:?}");
}

#[tokio::test]
async fn a_server_that_is_its_own_authority_is_accepted_where_it_is_pinned_and_only_there() {
    let server = TestServer::tls("self-signed").await;
    let folder = Folder::new();
    let outcome = async |cluster: &Value| ask(&folder.api(cluster, &json!({})).unwrap()).await;
    let with = |authority: &str, url: &str, name: &str| {
        let authority = folder.write("ca.pem", pem(authority));
        json!({"server": url, "certificate-authority": authority, "tls-server-name": name})
    };
    outcome(&with("self-signed", &server.url(), "")).await.unwrap();
    outcome(&with("self-signed", &server.url(), "api.test")).await.unwrap();
    for (shown, authority, name, words) in [
        ("self-signed", "self-signed", "elsewhere.test", "not valid for name"),
        ("self-signed", "old-authority", "", "holds exactly this one"),
        ("expired", "expired", "", "expired"),
        ("new-server", "old-authority", "", "put the right one into certificate-authority"),
    ] {
        server.certify(Certified { by: shown, clients_of: None });
        let cluster = with(authority, &server.url(), name);
        let error = outcome(&cluster).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("client error"), "in a library's words: {text}");
    }
}

#[tokio::test]
async fn a_server_certificate_is_accepted_where_it_is_pinned_itself() {
    let server = TestServer::tls("old-server").await;
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-server"));
    let cluster = json!({"server": server.url(), "certificate-authority": authority});
    ask(&folder.api(&cluster, &json!({})).unwrap()).await.unwrap();
    server.certify(Certified { by: "new-server", clients_of: None });
    ask(&folder.api(&cluster, &json!({})).unwrap()).await.unwrap_err();
}

#[tokio::test]
async fn the_name_of_the_certificate_may_be_given_and_its_check_be_switched_off() {
    let server = TestServer::tls("old-server").await;
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-authority"));
    let insecure = json!({"server": server.url(), "insecure-skip-tls-verify": true});
    ask(&folder.api(&insecure, &json!({})).unwrap()).await.unwrap();
    for (name, is_so) in [("api.test", true), ("127.0.0.1", true), ("elsewhere.test", false)] {
        let cluster = json!({
            "server": server.url(), "certificate-authority": authority, "tls-server-name": name,
        });
        let outcome = ask(&folder.api(&cluster, &json!({})).unwrap()).await;
        assert_eq!(outcome.is_ok(), is_so, "{name}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_client_certificate_that_was_replaced_is_read_again_after_an_alert() {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    let server = TestServer::tls("old-server").await;
    server.certify(Certified { by: "old-server", clients_of: Some("old-authority") });
    let folder = Folder::new();
    let authority = STANDARD.encode(pem("old-authority"));
    let cluster = json!({"server": server.url(), "certificate-authority-data": authority});
    let data = STANDARD.encode(pem("client"));
    let user = json!({"client-certificate-data": data, "client-key-data": data});
    ask(&folder.api(&cluster, &user).unwrap()).await.unwrap();

    let wrong = folder.write("client.pem", pem("new-server"));
    let user = json!({"client-certificate": wrong, "client-key": wrong});
    let api = folder.api(&cluster, &user).unwrap();
    ask(&api).await.unwrap_err();
    folder.write("client.pem", pem("client"));
    // Renewals are paced.
    until(async || ask(&api).await.is_ok()).await;
}
