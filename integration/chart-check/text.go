package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Calls `each` with every document that has more than comments.
func documents(in io.Reader, each func([]byte)) error {
	reader := yaml.NewYAMLReader(bufio.NewReaderSize(in, 1<<20))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !blank(document) {
			each(document)
		}
	}
}

func blank(document []byte) bool {
	for _, line := range strings.Split(string(document), "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && line != "---" {
			return false
		}
	}
	return true
}

// Prints what a rendered Secret has under a key: the file that a pod would see.
func printSecret(in io.Reader, name, key string, out io.Writer) error {
	found := false
	var failure error
	err := documents(in, func(document []byte) {
		var secret corev1.Secret
		if sigsyaml.Unmarshal(document, &secret) != nil || secret.Kind != "Secret" || secret.Name != name {
			return
		}
		if text, there := secret.StringData[key]; there {
			found = true
			_, failure = io.WriteString(out, text)
		}
	})
	if err == nil && failure == nil && !found {
		err = fmt.Errorf("no Secret %s with the key %s", name, key)
	}
	return errors.Join(err, failure)
}
