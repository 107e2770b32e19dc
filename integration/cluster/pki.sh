# shellcheck shell=bash
# Keys, certificates and tokens of the test cluster. Sourced, never run.

certificates() { # address of the API server, node...
    local address=$1 node token pki=$CLUSTER_STATE/pki
    shift
    mkdir -p "$pki"
    (
        cd "$pki"
        umask 077
        exec 2>openssl.log
        openssl genrsa -out sa.key 2048
        openssl rsa -in sa.key -pubout -out sa.pub
        openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3650 -subj /CN=cluster
        openssl req -newkey rsa:2048 -nodes -keyout apiserver.key -out apiserver.csr -subj /CN=kube-apiserver
        openssl x509 -req -in apiserver.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out apiserver.crt -extfile <(
            printf 'subjectAltName=IP:127.0.0.1,IP:%s,IP:10.96.0.1' "$address"
            printf ',DNS:%s' localhost kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local
        )
    ) || die "openssl failed: see $pki/openssl.log"
    token=$(openssl rand -hex 16)
    printf '%s,admin,admin,system:masters\n' "$token" >"$pki/tokens.csv"
    kubeconfig "$pki/admin.conf" "$address" "$token"
    for node in "$@"; do
        token=$(openssl rand -hex 16)
        # Also an administrator: the authorizer of nodes learns some seconds late which claims a node's pods
        # have, and pods would wait for that.
        printf '%s,system:node:%s,%s,"system:nodes,system:masters"\n' "$token" "$node" "$node" >>"$pki/tokens.csv"
        kubeconfig "$pki/$node.conf" "$address" "$token"
    done
}

kubeconfig() { # file address token
    cat >"$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$2", certificate-authority: $CLUSTER_STATE/pki/ca.crt}}]
users: [{name: test, user: {token: $3}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
END
}
