//! Exec plugins, each a shell script.

use super::*;

/// A user whose credentials come from this script.
fn user(folder: &Folder, script: &str) -> Value {
    let script = folder.write("plugin", script);
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": [script, "one argument"],
        "env": [{"name": "OF_THE_KUBECONFIG", "value": "a value"}],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": true,
    }})
}

/// A script that counts its runs and issues what `status` says.
fn issues(folder: &Folder, status: &str) -> String {
    let runs = folder.path("runs");
    format!(
        "echo run >> {}\ncat <<END\n{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \
         \"ExecCredential\", \"status\": {status}}}\nEND\n",
        runs.display()
    )
}

fn runs(folder: &Folder) -> usize {
    std::fs::read_to_string(folder.path("runs")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_token_without_expiry_is_replaced_when_the_server_refuses_it() {
    let server = TestServer::plain().await;
    server.accept_only("Bearer first");
    let folder = Folder::new();
    let script = issues(&folder, r#"{"token": "first"}"#);
    let api = folder.api(&json!({"server": server.url()}), &user(&folder, &script)).unwrap();
    for _ in 0..10 {
        ask(&api).await.unwrap();
    }
    assert_eq!(runs(&folder), 1, "what it has issued is kept");
    folder.write("plugin", issues(&folder, r#"{"token": "second"}"#));
    server.accept_only("Bearer second");
    ask(&api).await.unwrap();
    ask(&api).await.unwrap();
    assert_eq!(runs(&folder), 2);
}

#[tokio::test]
async fn a_token_that_is_revoked_before_its_expiry_is_replaced() {
    let server = TestServer::plain().await;
    server.accept_only("Bearer first");
    let folder = Folder::new();
    let status = r#"{"token": "first", "expirationTimestamp": "2999-01-01T00:00:00Z"}"#;
    let script = issues(&folder, status);
    let api = folder.api(&json!({"server": server.url()}), &user(&folder, &script)).unwrap();
    ask(&api).await.unwrap();
    folder.write("plugin", issues(&folder, &status.replace("first", "second")));
    server.accept_only("Bearer second");
    ask(&api).await.unwrap();
    assert_eq!(runs(&folder), 2);
}

#[tokio::test]
async fn a_server_that_refuses_everybody_does_not_make_the_plugin_run_without_end() {
    let server = TestServer::plain().await;
    server.accept_only("nobody");
    let folder = Folder::new();
    let script = issues(&folder, r#"{"token": "t"}"#);
    let api = folder.api(&json!({"server": server.url()}), &user(&folder, &script)).unwrap();
    for _ in 0..100 {
        let error = ask(&api).await.unwrap_err();
        assert!(matches!(&error, RequestError::Status(answer) if answer.code == 401), "{error:?}");
    }
    assert!((1..=3).contains(&runs(&folder)), "{} runs", runs(&folder));
}

#[tokio::test]
async fn a_token_of_the_past_does_not_make_the_plugin_run_for_each_request() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    let status = r#"{"token": "t", "expirationTimestamp": "2001-01-01T00:00:00Z"}"#;
    let script = issues(&folder, status);
    let api = folder.api(&json!({"server": server.url()}), &user(&folder, &script)).unwrap();
    for _ in 0..100 {
        ask(&api).await.unwrap();
    }
    assert!((1..=3).contains(&runs(&folder)), "{} runs", runs(&folder));
}

#[tokio::test]
async fn a_plugin_is_told_of_the_cluster_and_has_its_arguments_and_its_environment() {
    let server = TestServer::tls("old-server").await;
    let folder = Folder::new();
    let (info, other) = (folder.path("info"), folder.path("other"));
    let script = format!(
        "printf %s \"$KUBERNETES_EXEC_INFO\" > {}\nprintf %s \"$1,$OF_THE_KUBECONFIG\" > {}\n{}",
        info.display(),
        other.display(),
        issues(&folder, r#"{"token": "t"}"#)
    );
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({
        "server": server.url(),
        "certificate-authority": authority,
        "tls-server-name": "api.test",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
    });
    ask(&folder.api(&cluster, &user(&folder, &script)).unwrap()).await.unwrap();
    assert_eq!(server.authorizations(), ["Bearer t"]);
    assert_eq!(std::fs::read_to_string(other).unwrap(), "one argument,a value");
    let info: Value = serde_json::from_str(&std::fs::read_to_string(info).unwrap()).unwrap();
    assert_eq!(info["kind"], "ExecCredential");
    assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1");
    let spec = &info["spec"];
    assert_eq!(
        (&spec["interactive"], &spec["cluster"]["config"]),
        (&json!(false), &json!({"a": 1}))
    );
    assert_eq!(spec["cluster"]["server"], server.url());
    assert_eq!(spec["cluster"]["tls-server-name"], "api.test");
    assert!(spec["cluster"]["certificate-authority-data"].is_string(), "{info}");
}

#[tokio::test]
async fn a_plugin_may_issue_a_client_certificate() {
    let server = TestServer::tls("old-server").await;
    server.certify(Certified { by: "old-server", clients_of: Some("old-authority") });
    let folder = Folder::new();
    let both = json!(pem("client"));
    let status = json!({"clientCertificateData": both, "clientKeyData": both}).to_string();
    let script = issues(&folder, &status.replace("\\n", "\\\\n"));
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({"server": server.url(), "certificate-authority": authority});
    ask(&folder.api(&cluster, &user(&folder, &script)).unwrap()).await.unwrap();
    assert!(server.last().certificate.is_some());
}

/// Why there are no credentials.
async fn failed(folder: &Folder, user: &Value) -> CredentialsError {
    let server = TestServer::plain().await;
    let api = folder.api(&json!({"server": server.url()}), user).unwrap();
    let error = ask(&api).await.unwrap_err();
    assert_eq!(server.seen().len(), 0, "nothing is sent without credentials");
    let RequestError::Credentials(error) = error else { panic!("{error:?}") };
    error
}

#[tokio::test]
async fn a_plugin_that_fails_is_named_with_its_exit_code_and_its_output_is_never_shown() {
    let folder = Folder::new();
    let script = "echo s3cr3t; echo s3cr3t >&2; exit 7";
    let error = failed(&folder, &user(&folder, script)).await;
    assert!(error.passes, "its own server may be away: {error}");
    let text = error.to_string();
    assert!(text.contains("exec plugin /bin/sh failed (exit status: 7)"), "{text}");
    for output in [
        "s3cr3t",
        "{s3cr3t",
        r#"{"apiVersion": "s3"}"#,
        r#"{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": ["s3cr3t"]}}"#,
        r#"{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "s3\ncr3t"}}"#,
        r#"{"apiVersion": "client.authentication.k8s.io/v1", "status": {"clientKeyData": "s3cr3t"}}"#,
        "",
    ] {
        let script = format!("cat <<'END'\n{output}\nEND\n");
        let error = failed(&folder, &user(&folder, &script)).await;
        assert!(!error.passes, "{output}: {error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("exec plugin") && !text.contains("cr3t"), "{output}: {text}");
    }
}

#[tokio::test]
async fn a_plugin_that_is_not_installed_is_named_with_how_to_install_it() {
    let folder = Folder::new();
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "no-such-plugin",
        "installHint": "install it\nwith make\n",
    }});
    let error = failed(&folder, &user).await;
    assert!(!error.passes, "{error}");
    let text = error.to_string();
    for words in ["cannot run exec plugin no-such-plugin", "No such file", "install it with make"] {
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn a_plugin_that_fails_at_first_is_run_again() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    let api = folder.api(&json!({"server": server.url()}), &user(&folder, "exit 1")).unwrap();
    for _ in 0..20 {
        ask(&api).await.unwrap_err();
    }
    folder.write("plugin", issues(&folder, r#"{"token": "t"}"#));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    ask(&api).await.unwrap();
    assert_eq!(server.authorizations(), ["Bearer t"]);
}

#[tokio::test]
async fn beside_a_token_no_plugin_runs() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    let mut user = user(&folder, &issues(&folder, r#"{"token": "t"}"#));
    user["token"] = json!("inline");
    ask(&folder.api(&json!({"server": server.url()}), &user).unwrap()).await.unwrap();
    assert_eq!((server.authorizations(), runs(&folder)), (vec!["Bearer inline".to_owned()], 0));
}
