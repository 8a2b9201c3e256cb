//! Which files are read, and what of them counts.

use super::*;

fn named(context: &str, server: &str) -> String {
    json!({
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "users": [{"name": context, "user": {"token": context}}],
    })
    .to_string()
}

/// The cluster that is found with this `KUBECONFIG`.
fn found(list: &str, context: Option<&str>) -> Result<Cluster, ConnectError> {
    let env = |name: &str| (name == "KUBECONFIG").then(|| list.to_owned());
    connect_in(None, context, &env)
}

#[tokio::test]
async fn missing_files_of_a_list_are_skipped_and_the_first_value_counts() {
    let folder = Folder::new();
    let (missing, none) = (folder.path("missing"), folder.write("empty", "current-context: ''"));
    let one = folder.write("one", named("one", "http://127.0.0.1:1"));
    let two = folder.write("two", named("two", "http://127.0.0.1:2"));
    let list = [&missing, &none, &one, &missing, &two].map(|path| path.display().to_string());
    let list = format!("{}:", list.join(":"));
    assert_eq!(found(&list, None).unwrap().server, "http://127.0.0.1:1");
    assert_eq!(found(&list, Some("two")).unwrap().server, "http://127.0.0.1:2");
    let error = found(&list, Some("three")).map(drop).unwrap_err().to_string();
    assert!(error.contains("has no context \"three\"") && error.contains("one, two"), "{error}");
}

#[tokio::test]
async fn a_list_of_missing_files_is_named_and_so_is_a_file_that_was_asked_for() {
    let folder = Folder::new();
    let missing = folder.path("missing").display().to_string();
    let error = found(&missing, None).map(drop).unwrap_err().to_string();
    for words in ["no cluster found", &missing, "No such file", "not inside a pod", "--kubeconfig"]
    {
        assert!(error.contains(words), "no {words:?} in: {error}");
    }
    let error = connect(Some(&folder.path("missing")), None).map(drop).unwrap_err().to_string();
    assert!(error.contains(&missing) && error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn a_broken_file_of_a_list_is_an_error_and_is_not_shown() {
    let folder = Folder::new();
    let good = folder.write("good", named("good", "http://127.0.0.1:1"));
    let bad = folder.write("bad", "users:\n- {name: u, user: {token: s3cr3t}\nclusters: []\n");
    let error = found(&format!("{}:{}", good.display(), bad.display()), None);
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains(&bad.display().to_string()) && !error.contains("s3cr3t"), "{error}");
}

#[tokio::test]
async fn in_a_pod_the_service_account_is_used_also_with_an_ipv6_address() {
    let env = |name: &str| match name {
        "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
        _ => None,
    };
    let Source::Pod { server, .. } = Source::find(None, None, &env).unwrap() else {
        panic!("no pod")
    };
    assert_eq!(server, "https://[fd00::1]:443");
    let error = connect_in(None, None, &env).map(drop).unwrap_err().to_string();
    assert!(error.contains("serviceaccount/ca.crt"), "{error}");
}

#[tokio::test]
async fn paths_in_a_kubeconfig_are_relative_to_it() {
    let server = TestServer::tls("old-server").await;
    server.certify(Certified { by: "old-server", clients_of: Some("old-authority") });
    let folder = Folder::new();
    folder.write("ca.pem", pem("old-authority"));
    folder.write("token", "t\n");
    folder.write("client.pem", pem("client"));
    let cluster = json!({"server": server.url(), "certificate-authority": "ca.pem"});
    let user = json!({
        "tokenFile": "token", "client-certificate": "client.pem", "client-key": "./client.pem",
    });
    ask(&folder.api(&cluster, &user).unwrap()).await.unwrap();
    assert_eq!(server.authorizations(), ["Bearer t"]);
    assert!(server.last().certificate.is_some());
}

#[tokio::test]
async fn a_server_may_have_a_path_a_slash_at_its_end_an_ipv6_address_or_no_scheme() {
    let server = TestServer::plain().await;
    let folder = Folder::new();
    for (url, path) in [
        (server.url(), "/version"),
        (format!("{}/", server.url()), "/version"),
        (format!("{}/k8s/clusters/c-1/", server.url()), "/k8s/clusters/c-1/version"),
        (server.address.to_string(), "/version"),
    ] {
        ask(&folder.api(&json!({"server": url}), &json!({})).unwrap()).await.unwrap();
        assert_eq!(server.last().path, path, "{url}");
    }
    // Not every machine has IPv6.
    if let Ok(server) = TestServer::at("[::1]:0", None).await {
        ask(&folder.api(&json!({"server": server.url()}), &json!({})).unwrap()).await.unwrap();
        assert_eq!(server.last().header("host"), server.address.to_string());
    }
}

#[tokio::test]
async fn without_a_scheme_it_is_https_where_anything_of_tls_is_set() {
    let server = TestServer::tls("old-server").await;
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({"server": server.address.to_string(), "certificate-authority": authority});
    ask(&folder.api(&cluster, &json!({})).unwrap()).await.unwrap();
}

#[tokio::test]
async fn what_makes_no_sense_is_named_with_its_place() {
    let folder = Folder::new();
    let server = json!({"server": "https://127.0.0.1:1"});
    for (cluster, user, words) in [
        (json!({}), json!({}), &["cluster \"c\"", "it has no server"][..]),
        (json!({"server": "https://not a name"}), json!({}), &["cluster \"c\"", "is not a URL"]),
        (
            json!({"server": "ftp://127.0.0.1"}),
            json!({}),
            &["does not begin with https:// or http://"],
        ),
        (
            json!({"server": "https://a", "certificate-authority": "no.pem"}),
            json!({}),
            &["cluster \"c\"", "cannot read certificate-authority", "no.pem"],
        ),
        (
            json!({"server": "https://a", "certificate-authority-data": "###"}),
            json!({}),
            &["certificate-authority-data is not base64"],
        ),
        (
            json!({"server": "https://a", "certificate-authority-data": "aGVsbG8="}),
            json!({}),
            &["certificate-authority: it contains no PEM certificate"],
        ),
        (
            json!({"server": "https://a", "proxy-url": "ftp://p"}),
            json!({}),
            &["cluster \"c\"", "proxy-url", "use http, https or socks5"],
        ),
        (
            server.clone(),
            json!({"token": "s3\ncr3t"}),
            &["user \"u\"", "line break", "on one line"],
        ),
        (
            server.clone(),
            json!({"client-certificate-data": "aGVsbG8="}),
            &["user \"u\"", "no client-key"],
        ),
        (
            server.clone(),
            json!({"auth-provider": {"name": "gcp", "config": {}}}),
            &["user \"u\"", "auth-provider gcp", "use an exec plugin"],
        ),
        (
            server.clone(),
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "p"}}),
            &["exec plugin p", "v1alpha1", "client.authentication.k8s.io/v1 or"],
        ),
        (
            server,
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "p",
                "interactiveMode": "Always"}}),
            &["exec plugin p", "requires a terminal"],
        ),
    ] {
        let error = folder.api(&cluster, &user).map(drop).unwrap_err().to_string();
        for words in words {
            assert!(error.contains(words), "no {words:?} in: {error}");
        }
        assert!(!error.contains("cr3t"), "{error}");
    }
}
